// SPDX-License-Identifier: Apache-2.0
#include "plan/kv_traffic.h"

namespace spillway {

KvTraffic kv_traffic(const Hardware& hardware, const ModelSpec& spec, KvType type,
                     std::optional<float> top_k) {
  if (top_k.value_or(0) <= 0) return {};
  // Of V's bytes: more than all of them where heads that share keys choose many.
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
