// SPDX-License-Identifier: Apache-2.0
#include "plan/kv_traffic.h"

namespace spillway {

KvTraffic kv_traffic(const Hardware& hardware, const ModelSpec& spec, KvType type,
                     std::optional<float> top_k) {
  if (top_k.value_or(0) <= 0) return {};
  // The fraction of V's bytes that is read: above 1 if many query heads that share a key head
  // select many positions.
  const double values = double{*top_k} * query_group(spec);
  KvTraffic traffic{.read = (1 + values) / 2};
  const bool all_pinned = hardware.pageable_to_device == 0;
  if (hardware.has_device() && all_pinned && values < 1 && !is_quantized(type)) {
    traffic.moved = 0.5;
    traffic.over_bus = values / 2;
  }
  return traffic;
}

}  // namespace spillway
