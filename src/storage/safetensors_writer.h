// SPDX-License-Identifier: Apache-2.0
// Writes small safetensors files, for tests and one-file converters.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace spillway {

// Collects tensors, then writes them with write(). Not thread-safe. Like GgufWriter, it does not
// check its input.
class SafetensorsWriter {
 public:
  // `dtype` is spelled as in the format: "F32", "BF16", "I64". `bytes` are copied.
  void add_tensor(std::string_view name, std::string_view dtype, std::span<const int64_t> shape,
                  std::span<const std::byte> bytes);

  std::vector<std::byte> bytes() const;
  // Writes to a temporary name and then renames the file. Throws kIo.
  void write(const std::filesystem::path& path) const;

 private:
  std::string header_;  // JSON members so far
  std::vector<std::byte> data_;
};

}  // namespace spillway
