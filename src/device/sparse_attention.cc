// SPDX-License-Identifier: Apache-2.0
#include "device/sparse_attention.h"

#include <algorithm>

namespace spillway {

void AttentionTraffic::add(std::span<const SequenceSpan> spans, const KvLayerView& kv,
                           const AttentionParams& params, int layers) {
  const auto entry_bytes =
      static_cast<uint64_t>(kv_page_bytes(kv.type, kv.head_dim) / kKvBlockTokens * layers);
  for (const SequenceSpan& span : spans) {
    if (!span.generates) continue;
    const int64_t context = int64_t{span.start} + span.rows;
    const int64_t first = params.window > 0 ? std::max<int64_t>(0, context - params.window) : 0;
    // This is less than the context if the span is a partition of a sequence
    // (partitioned_attention.h).
    const auto covered = static_cast<int64_t>(span.block_table.size()) * kKvBlockTokens;
    const int64_t keys = std::max<int64_t>(0, std::min(context, covered) - first);
    const uint64_t dense = static_cast<uint64_t>(keys * kv.kv_heads) * entry_bytes;
    dense_v_bytes += dense;
    v_bytes +=
        is_sparse(params, span)
            ? static_cast<uint64_t>(attended_keys(params.top_k, keys) * params.heads) * entry_bytes
            : dense;
  }
}

}  // namespace spillway
