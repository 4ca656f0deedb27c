// SPDX-License-Identifier: Apache-2.0
// Writes GGUF version 3 files, for converted models and for tests.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "storage/value_array.h"
#include "tensor/dtype.h"

namespace spillway {

// Collects keys and tensors, then writes them with write(). Not thread-safe. Does not check its
// input (repeated keys and the like), because tests write broken files with it.
class GgufWriter {
 public:
  // Called with the next part of a tensor to fill, from front to back. All parts except the last
  // are whole multiples of 256 elements.
  using Fill = std::function<void(uint64_t offset, std::span<std::byte> out)>;

  explicit GgufWriter(uint32_t alignment = 32);

  void add(std::string_view key, std::string_view value);
  void add(std::string_view key, const char* value) { add(key, std::string_view(value)); }
  void add_bool(std::string_view key, bool value);
  void add_u32(std::string_view key, uint32_t value);
  void add_f32(std::string_view key, float value);
  // Adds a number of any type; an integer is truncated to the type's width.
  void add_int(std::string_view key, NumberType type, int64_t value);
  void add_double(std::string_view key, NumberType type, double value);
  void add(std::string_view key, const StringArray& values);
  void add(std::string_view key, const NumberArray& values);
  void add_ints(std::string_view key, std::span<const int32_t> values);
  void add_floats(std::string_view key, std::span<const float> values);

  // Adds a tensor. `shape` is row-major, outermost first. `bytes` are copied.
  void add_tensor(std::string_view name, DType dtype, std::vector<int64_t> shape,
                  std::span<const std::byte> bytes);
  // Adds a tensor whose bytes are made by `fill` while the file is written.
  void add_tensor(std::string_view name, DType dtype, std::vector<int64_t> shape, Fill fill);

  // Returns everything before the tensor data, padded to the alignment.
  std::vector<std::byte> header() const;
  // Returns the whole file; meant for small ones.
  std::vector<std::byte> bytes() const;
  // `path` is either complete or unchanged (FileWriter). Throws kIo, and kCancelled soon after
  // `*cancel` has become true.
  void write(const std::filesystem::path& path, const std::atomic<bool>* cancel = nullptr) const;

 private:
  struct Tensor {
    std::string name;
    DType dtype;
    std::vector<int64_t> shape;
    uint64_t bytes;
    Fill fill;
  };
  void begin_value(std::string_view key, uint32_t gguf_type);

  uint32_t alignment_;
  uint64_t key_count_ = 0;
  std::vector<std::byte> keys_;  // encoded
  std::vector<Tensor> tensors_;
};

}  // namespace spillway
