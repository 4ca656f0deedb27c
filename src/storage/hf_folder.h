// SPDX-License-Identifier: Apache-2.0
// Reads Hugging Face folders: config.json, safetensors in one file or in shards, tokenizer files.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "storage/byte_source.h"
#include "storage/tensor_index.h"

namespace spillway {

// Files by bare name: a folder on disk, or memory in tests.
class FolderSource {
 public:
  virtual ~FolderSource() = default;
  virtual const std::string& label() const = 0;
  // nullptr where there is no such file; throws kIo or kInvalidArgument where it cannot be opened.
  virtual std::unique_ptr<ByteSource> try_open(std::string_view name) const = 0;
};

// config.json plus model.safetensors, or model.safetensors.index.json and its shards. Throws Error
// with one line.
ModelFiles read_hf_folder(const std::filesystem::path& folder);
// The same from any source; paths are bare names.
ModelFiles parse_hf_folder(const FolderSource& folder);

// A folder of which only the tokenizer is wanted: needs tokenizer.json, or vocab.json and
// merges.txt; config.json is read where there is one, weights are not.
ModelFiles read_tokenizer_folder(const std::filesystem::path& folder);

}  // namespace spillway
