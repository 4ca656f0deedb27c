// SPDX-License-Identifier: Apache-2.0
// Computes how much of a KV cache decode attention reads and moves: all of it, or with sparse
// attention (FlexGen, section 5) all of K and those entries of V that the query heads select.
#pragma once

#include <optional>

#include "model/model_spec.h"
#include "plan/hardware.h"
#include "tensor/kv_format.h"

namespace spillway {

// Returns the number of query heads that share a key head.
inline double query_group(const ModelSpec& spec) {
  return static_cast<double>(spec.heads) / spec.kv_heads;
}

// Fractions of the bytes of the keys and values that a token attends to.
struct KvTraffic {
  double read = 1;  // read by attention, on either processor
  // The part of a page in host memory that is copied to the device; from disk all of it is.
  double moved = 1;
  // The fraction that attention on the device reads over the bus because V stays in host memory.
  double over_bus = 0;
};
// Returns the traffic as the runtime causes it. Each query head reads entries of its own
// (device/sparse_attention.h). V stays in host memory if the entries are fewer bytes than its
// pages, values are not quantized, and the device can read host memory, which then is pinned
// (Decoder::values_stay). The selection itself is not priced beyond the bytes of K. `top_k` is the
// share of positions that are selected; nullopt or 0: all.
KvTraffic kv_traffic(const Hardware& hardware, const ModelSpec& spec, KvType type,
                     std::optional<float> top_k);

}  // namespace spillway
