// SPDX-License-Identifier: Apache-2.0
// Writes small safetensors files, for tests and converters of one file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace spillway {

// Collect tensors, then write(). Not thread-safe. Like GgufWriter it does not check what it is
// told.
class SafetensorsWriter {
 public:
  // `dtype` as the format spells it: "F32", "BF16", "I64". `bytes` are copied.
  void add_tensor(std::string_view name, std::string_view dtype, std::span<const int64_t> shape,
                  std::span<const std::byte> bytes);

  std::vector<std::byte> bytes() const;
  // To a temporary name, then renamed. Throws kIo.
  void write(const std::filesystem::path& path) const;

 private:
  std::string header_;  // JSON members so far
  std::vector<std::byte> data_;
};

}  // namespace spillway
