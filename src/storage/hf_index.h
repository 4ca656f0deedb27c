// SPDX-License-Identifier: Apache-2.0
// Reads model.safetensors.index.json or pytorch_model.bin.index.json, which say which shard has
// which tensor.
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
  std::vector<std::string> shards;  // sorted bare names
  std::vector<Entry> tensors;       // sorted by name
};

// Throws kInvalidArgument for text without a weight_map, repeated tensors, and shard names that are
// paths or do not end in `ending`.
HfIndex parse_hf_index(std::string_view text, const std::string& label,
                       std::string_view ending = ".safetensors");

}  // namespace spillway
