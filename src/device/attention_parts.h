// SPDX-License-Identifier: Apache-2.0
// Attention to a sequence part by part: pages that lie in different memories are attended to one
// part after the other, or on two devices at once, and what the parts give is added up.
#pragma once

#include <cstdint>
#include <span>

#include "device/ops.h"
#include "tensor/attention_layout.h"

namespace spillway {

// What rows have seen so far. Of each head of a row: values weighted by exponents e^(score -
// maximum) [head_dim], that maximum, and the sum of the exponents. So nothing is lost that a whole
// attention would not lose: there is no quotient and no logarithm in between. Sum 0: nothing was
// seen, whatever the maximum is.
struct AttentionSums {
  Activations memory;  // F32 [rows, attention_sum_columns]: outputs, maxima, sums of all heads
  int heads = 0;
  int head_dim = 0;

  int64_t rows() const { return memory.rows; }
  // Columns of the first head's.
  int64_t maxima() const { return int64_t{heads} * head_dim; }
  int64_t sums() const { return int64_t{heads} * (head_dim + 1); }
  AttentionSums row_range(int64_t first, int64_t count) const {
    return {memory.row_range(first, count), heads, head_dim};
  }
};

// Ops beside those of Ops, in the same queue. Sums are in the device's memory.
//
// A part of a sequence is a SequenceSpan whose positions count from the part's first, which is a
// multiple of kAttentionPartTokens: `start` is that of its rows less that, and `block_table` begins
// there. A part that ends with its rows is seen as by Ops::attention(): by each row up to itself. A
// part that ends before them has a table that ends there, at a multiple of kAttentionPartTokens:
// all rows see all of it. A window hides the same positions in any part: it goes by distances. Rows
// that attend to few of their positions (AttentionParams::top_k) have no parts: which are the
// largest scores is known of all of them only. So `top_k` is not looked at.
//
// Numerics: what a row has seen after parts in the order of their positions depends on the row, its
// positions, and where they were cut. On a CPU not even on the last (but for int4, which is rotated
// in between, and where Ops::attention() takes a kernel for many rows): it then has the bits of the
// whole. A GPU adds up in an order of its own in each part.
class AttentionParts {
 public:
  virtual ~AttentionParts() = default;

  // Nothing has been seen.
  virtual void clear_sums(const AttentionSums& sums) = 0;
  // Adds what rows q [rows, heads * head_dim] see of their parts; rows that no span has stay as
  // they are. KV that a span's own rows write was appended before.
  virtual void attend_part(const Activations& q, const KvLayerView& kv,
                           std::span<const SequenceSpan> spans, const AttentionParams& params,
                           const AttentionSums& sums) = 0;
  // Adds what the same rows have seen elsewhere, of other positions. `seen` may be host memory as
  // in Ops::copy().
  virtual void add_sums(const AttentionSums& seen, const AttentionSums& sums) = 0;
  // out [rows, heads * head_dim] = what attention gives for all that was seen. NaN where nothing
  // was.
  virtual void finish_sums(const AttentionSums& sums, const Activations& out) = 0;
};

}  // namespace spillway
