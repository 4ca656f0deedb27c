// SPDX-License-Identifier: Apache-2.0
// Loads a whole model on one device, for tests.
#pragma once

#include <memory>
#include <string>

#include "engine/loaded_model.h"
#include "kv/block_allocator.h"
#include "kv/kv_cache.h"

namespace spillway {

inline std::unique_ptr<LoadedModel> load_model(Device& device, const std::string& reference,
                                               const WeightLoadOptions& options) {
  auto loaded = describe_for_loading(device, reference, options);
  load_weights_of(*loaded, device, options, {});
  return loaded;
}

// Makes a KV cache with room for `sequences` sequences of `tokens` tokens each.
inline KvCache make_kv_cache(Device& device, const ModelSpec& spec, KvType type, int64_t tokens,
                             int64_t sequences = 1) {
  return KvCache(device, kv_shapes(spec.states, type),
                 static_cast<int32_t>(blocks_for_tokens(tokens) * sequences));
}

}  // namespace spillway
