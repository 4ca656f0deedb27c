// SPDX-License-Identifier: Apache-2.0
// A prompt as a few hundred numbers that say what it is about.
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
  // [dimensions], of length 1. Throws kOutOfMemory.
  virtual std::vector<float> embed(std::string_view text) const = 0;
  // Of all that decides these numbers: what was learned from those of one says nothing about those
  // of another.
  virtual const std::string& digest() const = 0;
  virtual const std::filesystem::path& folder() const = 0;
  // Of the host's memory: weights, and what a pass works in. Stays as it is.
  virtual uint64_t memory_bytes() const = 0;
};

}  // namespace spillway
