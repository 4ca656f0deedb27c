// SPDX-License-Identifier: Apache-2.0
#include "device/sparse_attention.h"

#include <algorithm>

namespace spillway {

void AttentionTraffic::add(std::span<const SequenceSpan> spans, const KvLayerView& kv,
                           const AttentionParams& params, int layers) {
  const auto entry_bytes =
      static_cast<uint64_t>(kv_page_bytes(kv.type, kv.head_dim) / kKvBlockTokens * layers);
  for (const SequenceSpan& span : spans) {
    if (span.rows != 1) continue;
    const int64_t context = int64_t{span.start} + 1;
    const int64_t keys = params.window > 0 ? std::min<int64_t>(params.window, context) : context;
    const uint64_t dense = static_cast<uint64_t>(keys * kv.kv_heads) * entry_bytes;
    dense_v_bytes += dense;
    v_bytes +=
        is_sparse(params, span)
            ? static_cast<uint64_t>(attended_keys(params.top_k, keys) * params.heads) * entry_bytes
            : dense;
  }
}

}  // namespace spillway
