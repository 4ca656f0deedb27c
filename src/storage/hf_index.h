// SPDX-License-Identifier: Apache-2.0
// Reads model.safetensors.index.json, which says which shard has which tensor.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace spillway {

struct HfIndex {
  struct Entry {
    std::string tensor;
    int32_t shard = 0;  // index into `shards`
  };
  std::vector<std::string> shards;  // sorted bare names ending in .safetensors
  std::vector<Entry> tensors;       // sorted by name
};

// Throws kInvalidArgument for text without a weight_map, repeated tensors, and shard names that are
// paths.
HfIndex parse_hf_index(std::string_view text, const std::string& label);

}  // namespace spillway
