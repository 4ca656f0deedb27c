// SPDX-License-Identifier: Apache-2.0
// Devices under test, and matrices in their memory with guard zones around them.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "device/device.h"

namespace spillway::parity {

// One kind of device: how to make it and how to move bytes. A further backend adds an entry to
// device_kinds() and every parity test runs on it.
struct DeviceKind {
  std::string name;
  std::unique_ptr<Device> (*make)(int threads);
  void (*upload)(Device& device, std::byte* to, const void* from, size_t bytes);
  void (*download)(Device& device, void* to, const std::byte* from, size_t bytes);
  // Loading a model aligns a GPU's weights and makes its vectors F32, so a GPU need not take
  // others.
  bool any_alignment = true;
  bool any_vector_type = true;
  bool has_threads = true;  // of its own; otherwise make() takes any number for the same device
  bool half_activations = false;  // ops take F16 and BF16, too
};
inline constexpr const char* kFloatActivationsOnly = "its ops take activations of F32 only";
const std::vector<DeviceKind>& device_kinds();

// Returns the numbers of threads to try for a kind.
std::vector<int> thread_counts(const DeviceKind& kind);

// A device of one kind, with its way to copy bytes.
class TestDevice {
 public:
  explicit TestDevice(const DeviceKind& kind, int threads = 0)
      : kind_(kind), device_(kind.make(threads)) {}

  Ops& ops() { return device_->ops(); }
  Device& device() { return *device_; }
  void upload(std::byte* to, const void* from, size_t bytes) {
    kind_.upload(*device_, to, from, bytes);
  }
  void download(void* to, const std::byte* from, size_t bytes) {
    kind_.download(*device_, to, from, bytes);
  }
  const DeviceKind& kind() const { return kind_; }

 private:
  const DeviceKind& kind_;
  std::unique_ptr<Device> device_;
};

// Returns these values as activations of a plain type hold them.
std::vector<float> rounded(std::vector<float> values, DType type);

// Activations [rows, cols] of F32, F16 or BF16 with guards before, after and between the rows
// (stride > cols). All starts as NaN, so that an element which was not written shows;
// expect_guards() fails when a guard changed.
class Matrix {
 public:
  Matrix(TestDevice& device, int64_t rows, int64_t cols, DType type = DType::kF32);
  Matrix(TestDevice& device, int64_t rows, int64_t cols, const std::vector<float>& values,
         DType type = DType::kF32);

  const Activations& view() const { return view_; }
  void write(const std::vector<float>& values);  // [rows, cols]; rounded to the type
  std::vector<float> read() const;               // [rows, cols]
  void expect_guards() const;

 private:
  // These copy all of its memory at once: a copy to or from a GPU costs as much for a row as for
  // all.
  std::vector<std::byte> download() const;
  void upload(const std::vector<std::byte>& all) const;
  // Returns the offset of element (row, 0) in that memory.
  size_t offset_of(int64_t row) const;

  TestDevice& device_;
  Buffer buffer_;
  int64_t elements_;
  Activations view_;
};

// A stored matrix, at an odd byte address where the device takes any.
class Weights {
 public:
  Weights() = default;
  Weights(TestDevice& device, DType type, int64_t rows, int64_t cols,
          const std::vector<std::byte>& stored, WeightLayout layout = WeightLayout::kRows);

  const WeightView& view() const { return view_; }
  const std::vector<float>& values() const { return values_; }  // decoded by the reference

 private:
  Buffer buffer_;
  WeightView view_;
  std::vector<float> values_;
};

std::vector<float> random_floats(int64_t count, uint32_t seed, float deviation = 1);
// Returns valid stored data of any type.
std::vector<std::byte> random_stored(DType type, int64_t count, uint32_t seed);
Weights random_weights(TestDevice& device, DType type, int64_t rows, int64_t cols, uint32_t seed,
                       WeightLayout layout = WeightLayout::kRows);

// A type in a layout, on a device.
using StoredCase = std::tuple<DeviceKind, DType, WeightLayout>;
// Returns every type in the file's layout, and packed if the device prefers that.
std::vector<StoredCase> stored_cases();
std::string stored_case_name(const testing::TestParamInfo<StoredCase>& info);

// Returns the sum of squared differences over the sum of squares; infinity if a value is not
// finite.
double nmse(const std::vector<float>& actual, const std::vector<double>& expected);
bool same_bits(const std::vector<float>& a, const std::vector<float>& b);

// The largest NMSE allowed between an op and double precision.
inline constexpr double kFloatBar = 1e-9;
// Returns what is allowed besides for activations of a type, since they and steps in between are
// rounded to it.
inline double rounding_bar(DType type) {
  if (type == DType::kF32) return 0;
  return type == DType::kF16 ? 1e-5 : 2e-5;
}

class ParityTest : public testing::TestWithParam<DeviceKind> {
 protected:
  TestDevice device_{GetParam()};
};
inline std::string kind_name(const testing::TestParamInfo<DeviceKind>& info) {
  return info.param.name;
}
inline std::string typed_name(const testing::TestParamInfo<std::tuple<DeviceKind, DType>>& info) {
  return std::get<0>(info.param).name + "_" + std::string(dtype_name(std::get<1>(info.param)));
}

}  // namespace spillway::parity
