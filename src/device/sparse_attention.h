// SPDX-License-Identifier: Apache-2.0
// Sparse attention in decode (FlexGen, section 5): how many keys are attended to, and how much of
// the values that reads.
#pragma once

#include <cstdint>
#include <span>

#include "device/ops.h"

namespace spillway {

// Returns how many of the `keys` visible to a row are attended to: `share` of them rounded up, at
// least one. The share is a float, and what its rounding may have added is taken off first, so that
// a tenth of 10 is 1.
constexpr int64_t attended_keys(float share, int64_t keys) {
  if (share >= 1) return keys;
  const double wanted = static_cast<double>(share) * static_cast<double>(keys) * (1 - 0x1p-23);
  const auto whole = static_cast<int64_t>(wanted);
  const int64_t rounded = static_cast<double>(whole) < wanted ? whole + 1 : whole;
  return rounded < 1 ? 1 : rounded;
}

// Returns whether a span's row attends to its largest scores only. Prompts attend to all.
constexpr bool is_sparse(const AttentionParams& params, const SequenceSpan& span) {
  return params.top_k > 0 && span.generates;
}

// Counts the bytes of V that attention reads in decode (prompts are not counted): `v_bytes` as it
// is, `dense_v_bytes` as if every row attended to all visible positions. In dense attention the
// query heads of a KV head share one read; in sparse attention each reads the entries that it has
// chosen, even if another has chosen the same.
struct AttentionTraffic {
  uint64_t v_bytes = 0;
  uint64_t dense_v_bytes = 0;

  // Adds one step's spans in `layers` layers like `kv`.
  void add(std::span<const SequenceSpan> spans, const KvLayerView& kv,
           const AttentionParams& params, int layers);
  AttentionTraffic& operator+=(const AttentionTraffic& other) {
    v_bytes += other.v_bytes;
    dense_v_bytes += other.dense_v_bytes;
    return *this;
  }
};

}  // namespace spillway
