// SPDX-License-Identifier: Apache-2.0
// Computes the sizes in bytes of the buffers for activations. The runtime allocates exactly these.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/model_spec.h"
#include "plan/plan.h"
#include "plan/streaming_schedule.h"
#include "tensor/dtype.h"

namespace spillway {

// A decoder's buffers on its device: one for each scratch buffer of the network
// (LoweredModel::buffers), and one for the angles of each rope, for the tokens of a step. A scratch
// buffer that the head uses must also hold the rows for which logits are computed.
struct DecoderBuffers {
  std::vector<uint64_t> scratch, angles;
};
// Embedding rows that are looked up in host memory and copied to the device as small tables, here
// for `rows` tokens. `token_row` and `position_row` are the bytes of a row of the token and of the
// position embedding; 0 means that there is no such table.
struct LookedUpRows {
  int64_t token_row = 0, position_row = 0, rows = 0;

  uint64_t position_offset() const;  // where the table of positions begins, after that of tokens
  uint64_t bytes() const;            // of both tables; 0 if nothing is looked up
};
// Returns the sizes of a decoder's buffers. `inner` is the type of activations between matrices.
// Looked-up rows are put into the widest buffer of the layers before the layers use it.
DecoderBuffers decoder_buffers(const ModelSpec& spec, DType inner, int64_t step_tokens,
                               int64_t micro_tokens, int64_t logit_rows,
                               const LookedUpRows& looked_up);

// Says in which memory the residual stream of a step lies between layers, token by token. A
// micro-batch is in one tier, the tier of its last row.
struct ResidualSizes {
  int64_t tokens = 0;         // in a step
  int64_t device_tokens = 0;  // those on the device, which come first
  int64_t host_tokens = 0;    // those in host memory, which come next; the others are on disk
  int64_t micro_tokens = 0;   // in a micro-batch
  int64_t columns = 0;

  // Returns the same sizes for a device: if its memory is the host's, host tokens count as device
  // tokens. No tier gets more tokens than the step has.
  ResidualSizes on(bool host_visible) const;
  int64_t memory_tokens() const { return device_tokens + host_tokens; }
  // Returns the tier of a micro-batch that ends before row `end`.
  Tier home_of(int64_t end) const {
    return end <= device_tokens     ? Tier::kDevice
           : end <= memory_tokens() ? Tier::kHost
                                    : Tier::kDisk;
  }
  // Returns the first row at which a micro-batch of that tier can begin.
  int64_t first_on_host() const;
  int64_t first_on_disk() const;
  uint64_t row_bytes() const;
  // Returns the bytes of a buffer through which a micro-batch moves between its slot and the disk,
  // aligned for direct I/O.
  uint64_t staging_bytes() const;
  bool has_disk() const { return memory_tokens() < tokens; }
  // Returns 2, because one slot is computed while another one is filled, or 3 if a slot is written
  // to disk directly (`in_place`).
  static constexpr int slot_count(bool in_place) { return in_place ? 3 : 2; }
};
ResidualSizes residual_sizes(const TierShares& shares, int64_t step_tokens, int64_t micro_tokens,
                             int64_t hidden);

// The bytes of each memory that a residual stream needs; its sizes come from ResidualSizes::on().
struct ResidualBytes {
  uint64_t device_rows = 0;
  uint64_t slot = 0;  // bytes of one slot on the device
  int slots = 0;
  uint64_t host = 0, disk = 0;
  // Bytes in host memory of each of two buffers, one for reads and one for writes.
  uint64_t bounce = 0;
};
ResidualBytes residual_bytes(const ResidualSizes& sizes, bool host_visible);

// The buffers through which CPU and device exchange the inputs and outputs of a linear op
// (runtime/host_linear.h).
struct HostLinearBytes {
  uint64_t input = 0, output = 0;  // in pinned host memory
  uint64_t staging = 0;            // on the device; larger transfers pass through it in chunks
};
inline constexpr uint64_t kHandOverChunk = uint64_t{4} << 20;
// Returns no bytes if the CPU multiplies no rows.
HostLinearBytes host_linear_bytes(const ModelSpec& spec, std::span<const CpuRows> uses);

// The buffers of attention on the CPU beside a device: `rows` rows come from the device and their
// results go back through pinned memory. The CPU computes with floats.
struct HostAttentionBytes {
  uint64_t qkv = 0, attended = 0;                // pinned, in the device's type
  uint64_t qkv_floats = 0, attended_floats = 0;  // the same as floats, with which the CPU computes
};
HostAttentionBytes host_attention_bytes(int64_t q_dim, int64_t kv_dim, DType inner, int64_t rows);

// Returns the bytes of the softmax states of rows that attend to their KV in partitions
// (device/partitioned_attention.h). They lie on the device, and also in pinned memory if the CPU
// attends to one of the partitions.
uint64_t softmax_state_bytes(int64_t heads, int64_t head_dim, int64_t rows);

}  // namespace spillway
