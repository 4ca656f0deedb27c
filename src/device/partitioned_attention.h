// SPDX-License-Identifier: Apache-2.0
// Attention over partitions of a sequence's KV: partitions in different memories are attended to
// one after the other, or on two devices concurrently, and merged by their softmax states.
#pragma once

#include <cstdint>
#include <span>

#include "device/ops.h"
#include "tensor/attention_layout.h"

namespace spillway {

// The softmax state of rows over the partitions attended to so far. For each head of a row it holds
// the values weighted by the exponents e^(score - maximum) [head_dim], that maximum, and the sum of
// the exponents. Neither a quotient nor a logarithm is taken in between, so that no more precision
// is lost than in attention over the whole. A sum of 0 means that nothing was attended to, whatever
// the maximum is.
struct SoftmaxState {
  Activations memory;  // F32 [rows, softmax_state_columns]: outputs, maxima, sums of all heads
  int heads = 0;
  int head_dim = 0;

  int64_t rows() const { return memory.rows; }
  // The column of the first head's maximum, and that of its sum.
  int64_t maxima() const { return int64_t{heads} * head_dim; }
  int64_t sums() const { return int64_t{heads} * (head_dim + 1); }
  SoftmaxState row_range(int64_t first, int64_t count) const {
    return {memory.row_range(first, count), heads, head_dim};
  }
};

// Ops that run in the same queue as those of Ops. Softmax states are in the device's memory.
//
// A partition of a sequence is a SequenceSpan whose positions count from the partition's first,
// which is a multiple of kPartitionTokens: `start` is the start of its rows minus that
// position, and `block_table` begins there. If a partition ends with its rows, each row attends up
// to itself, as in Ops::attention(). If it ends before them, at a multiple of kPartitionTokens,
// its table ends there too, and all rows attend to all of it. A window goes by distances, so that
// it hides the same positions in any partition. Rows that attend to few of their positions
// (AttentionParams::top_k) cannot be partitioned, since the largest scores are known only over all
// positions; so `top_k` is ignored here.
//
// Numerics: the softmax state of a row after partitions in the order of their positions depends on
// the row, its positions, and where these were partitioned. On a CPU it does not even depend on the
// last and has the bits of attention over the whole, except for int4, which is rotated in between,
// and where Ops::attention() takes a kernel for many rows. A GPU has its own order of summation in
// each partition.
class PartitionedAttention {
 public:
  virtual ~PartitionedAttention() = default;

  // Sets the state of having attended to nothing.
  virtual void clear_state(const SoftmaxState& sums) = 0;
  // Attends rows q [rows, heads * head_dim] to their partitions and adds that to `sums`; rows that
  // no span has are left unchanged. KV that a span's own rows write was appended before.
  virtual void attend_partition(const Activations& q, const KvLayerView& kv,
                                std::span<const SequenceSpan> spans, const AttentionParams& params,
                                const SoftmaxState& sums) = 0;
  // Merges the state `seen` of the same rows over other positions into `sums`. `seen` may be host
  // memory as in Ops::copy().
  virtual void merge_state(const SoftmaxState& seen, const SoftmaxState& sums) = 0;
  // Writes to out [rows, heads * head_dim] the result of attention over everything in `sums`; NaN
  // for rows that attended to nothing.
  virtual void finish_state(const SoftmaxState& sums, const Activations& out) = 0;
};

}  // namespace spillway
