// SPDX-License-Identifier: Apache-2.0
// What decode attention reads and moves of a KV cache: all of it, or with sparse attention
// (FlexGen, section 5) all of K and of V what the query heads choose.
#pragma once

#include <optional>

#include "model/model_spec.h"
#include "plan/hardware.h"
#include "tensor/kv_format.h"

namespace spillway {

// Query heads that share a key's.
inline double query_group(const ModelSpec& spec) {
  return static_cast<double>(spec.heads) / spec.kv_heads;
}

// Of the bytes of the keys and values that are seen.
struct KvTraffic {
  double read = 1;   // by attention, wherever it runs
  double moved = 1;  // of pages that come to the device out of host memory; from disk all do
  // Of what attention on the device reads for those: over the bus, where V stays at home.
  double over_bus = 0;
};
// As the runtime does it: each query head reads entries of its own (device/sparse_attention.h), and
// V stays in host memory where that is less than its pages, values are not packed together, and the
// device reads host memory, which then is pinned (Decoder::values_stay). What choosing takes beside
// the bytes is not priced. `top_k`: the share of positions; nothing or 0: all.
KvTraffic kv_traffic(const Hardware& hardware, const ModelSpec& spec, KvType type,
                     std::optional<float> top_k);

}  // namespace spillway
