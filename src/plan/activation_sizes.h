// SPDX-License-Identifier: Apache-2.0
// The buffers that activations lie in, in bytes: the runtime makes exactly these.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/model_spec.h"
#include "plan/plan.h"
#include "plan/stream_order.h"
#include "tensor/dtype.h"

namespace spillway {

// Of a decoder, on its device: a buffer for each scratch of the network (LoweredModel::buffers),
// and the angles of each rope, for the tokens of a step. Those of the head grow with the rows that
// logits are wanted of.
struct DecoderBuffers {
  std::vector<uint64_t> scratch, angles;
};
// Rows of embeddings that are looked up in host memory come to the device as small tables, here of
// `rows` tokens: bytes of a row of the token embedding, and of the position embedding (0: there is
// none).
struct LookedUpRows {
  int64_t token_row = 0, position_row = 0, rows = 0;

  uint64_t position_offset() const;  // of the second table, behind the first
  uint64_t bytes() const;            // of both; where nothing is looked up 0
};
// `inner` is the type between matrices. Looked-up rows use the widest buffer of the layers, before
// these do.
DecoderBuffers decoder_buffers(const ModelSpec& spec, DType inner, int64_t step_tokens,
                               int64_t micro_tokens, int64_t logit_rows,
                               const LookedUpRows& looked_up);

// The residual stream of a step between layers: whose rows are where. A micro-batch is in one tier,
// that of its last row.
struct ResidualSizes {
  int64_t tokens = 0;         // of a step
  int64_t device_tokens = 0;  // of those: on the device, the first ones
  int64_t host_tokens = 0;    // in host memory, the next ones; the others are on disk
  int64_t micro_tokens = 0;   // of a micro-batch
  int64_t columns = 0;

  // The same where the host's memory is the device's; never more than there are.
  ResidualSizes on(bool host_visible) const;
  int64_t memory_tokens() const { return device_tokens + host_tokens; }
  // Of a micro-batch that ends before row `end`.
  Tier home_of(int64_t end) const {
    return end <= device_tokens     ? Tier::kDevice
           : end <= memory_tokens() ? Tier::kHost
                                    : Tier::kDisk;
  }
  // A micro-batch may begin this early and still be in that tier.
  int64_t first_on_host() const;
  int64_t first_on_disk() const;
  uint64_t row_bytes() const;
  // Of a micro-batch between slot and disk, aligned for direct I/O.
  uint64_t staging_bytes() const;
  bool has_disk() const { return memory_tokens() < tokens; }
  // One computes, one arrives; with a slot that is written to disk from where it is, three.
  static constexpr int slot_count(bool in_place) { return in_place ? 3 : 2; }
};
ResidualSizes residual_sizes(const TierShares& shares, int64_t step_tokens, int64_t micro_tokens,
                             int64_t hidden);

// What one that is on() its device takes of each memory.
struct ResidualBytes {
  uint64_t device_rows = 0;
  uint64_t slot = 0;  // on the device
  int slots = 0;
  uint64_t host = 0, disk = 0;
  uint64_t bounce = 0;  // of host memory, twice: on the way in and out
};
ResidualBytes residual_bytes(const ResidualSizes& sizes, bool host_visible);

// Attention on the CPU beside a device: `rows` rows come down and go up through pinned memory, and
// are floats where it computes.
// What CPU and device hand each other of a linear op (runtime/host_linear.h).
struct HostLinearBytes {
  uint64_t input = 0, output = 0;  // of host memory, pinned
  uint64_t staging = 0;            // of the device's: what is large goes through it, in chunks
};
inline constexpr uint64_t kHandOverChunk = uint64_t{4} << 20;
// None where the CPU has no rows.
HostLinearBytes host_linear_bytes(const ModelSpec& spec, std::span<const CpuRows> uses);

struct HostAttentionBytes {
  uint64_t qkv = 0, attended = 0;                // pinned, as the device has them
  uint64_t qkv_floats = 0, attended_floats = 0;  // what the CPU computes with
};
HostAttentionBytes host_attention_bytes(int64_t q_dim, int64_t kv_dim, DType inner, int64_t rows);

// What rows have seen of sequences that are attended to in parts (device/attention_parts.h): on the
// device, and pinned where the CPU attends to one of the parts.
uint64_t attention_sums_bytes(int64_t heads, int64_t head_dim, int64_t rows);

}  // namespace spillway
