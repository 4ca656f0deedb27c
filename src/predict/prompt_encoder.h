// SPDX-License-Identifier: Apache-2.0
// The interface of encoders that turn a prompt into an embedding of a few hundred numbers.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace spillway {

// Thread-safe.
class PromptEncoder {
 public:
  virtual ~PromptEncoder() = default;
  virtual int64_t dimensions() const = 0;
  // Returns [dimensions], a vector of length 1. Throws kOutOfMemory.
  virtual std::vector<float> embed(std::string_view text) const = 0;
  // Identifies all that decides the embeddings: weights learned for one encoder's embeddings mean
  // nothing for another's.
  virtual const std::string& digest() const = 0;
  virtual const std::filesystem::path& folder() const = 0;
  // Host memory of the weights and of a pass's workspace. It does not change.
  virtual uint64_t memory_bytes() const = 0;
};

}  // namespace spillway
