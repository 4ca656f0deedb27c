// SPDX-License-Identifier: Apache-2.0
// A Hugging Face folder in memory, whose files tests damage.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "storage/hf_folder.h"
#include "tests/hostile/case_runner.h"

namespace spillway {

inline Bytes to_bytes(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

class MemoryFolder final : public FolderSource {
 public:
  const std::string& label() const override { return label_; }
  std::unique_ptr<ByteSource> try_open(std::string_view name) const override {
    const auto it = files.find(name);
    if (it == files.end()) return nullptr;
    return std::make_unique<MemorySource>(std::string(name), it->second);
  }
  uint64_t bytes() const {
    uint64_t sum = 0;
    for (const auto& [name, content] : files) sum += content.size();
    return sum;
  }
  std::map<std::string, Bytes, std::less<>> files;

 private:
  std::string label_ = "folder";
};

}  // namespace spillway
