// SPDX-License-Identifier: Apache-2.0
// Reads Hugging Face folders: config.json, weights in one file or in shards, tokenizer files.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "storage/byte_source.h"
#include "storage/tensor_index.h"

namespace spillway {

// Opens files by bare name, in a folder on disk or, for tests, in memory.
class FolderSource {
 public:
  virtual ~FolderSource() = default;
  virtual const std::string& label() const = 0;
  // Returns nullptr if there is no such file; throws kIo or kInvalidArgument if it cannot be
  // opened.
  virtual std::unique_ptr<ByteSource> try_open(std::string_view name) const = 0;
};

// Reads config.json and the first of these that is there: model.safetensors,
// model.safetensors.index.json and its shards, pytorch_model.bin, pytorch_model.bin.index.json and
// its shards. Throws Error with one line.
ModelFiles read_hf_folder(const std::filesystem::path& folder);
// Does the same from any source; the paths of the result are bare names.
ModelFiles parse_hf_folder(const FolderSource& folder);

// Reads a folder of which only the tokenizer is needed: tokenizer.json, or vocab.json and
// merges.txt. Reads config.json if it is there, but no weights.
ModelFiles read_tokenizer_folder(const std::filesystem::path& folder);

}  // namespace spillway
