// SPDX-License-Identifier: Apache-2.0
#include "tests/parity/parity_device.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <span>

#include "cpu/cpu_device.h"
#include "cuda/cuda.h"
#include "tensor/dequantize.h"
#include "tensor/half.h"
#include "tensor/packed_layout.h"
#include "tensor/random_fill.h"

namespace spillway::parity {
namespace {

constexpr int64_t kGuard = 16;  // elements before and after
// Returns the elements between rows: 16 bytes if rows must be aligned.
int64_t gap_of(const DeviceKind& kind, DType type) {
  return kind.any_alignment ? 3 : 16 / row_bytes(type, 1);
}

void copy_in(Device& device, std::byte* to, const void* from, size_t bytes) {
  device.copy_to_device(to, static_cast<const std::byte*>(from), bytes);
}
void copy_out(Device& device, void* to, const std::byte* from, size_t bytes) {
  device.copy_to_host(static_cast<std::byte*>(to), from, bytes);
}

std::vector<DeviceKind> find_device_kinds() {
  std::vector<DeviceKind> kinds;
  kinds.push_back({"cpu",
                   [](int threads) -> std::unique_ptr<Device> {
                     return std::make_unique<CpuDevice>(CpuDeviceOptions{.threads = threads});
                   },
                   copy_in, copy_out});
  if (!list_cuda_devices().devices.empty()) {
    kinds.push_back({"cuda", [](int) { return make_cuda_device({}); }, copy_in, copy_out,
                     /*any_alignment=*/false, /*any_vector_type=*/false,
                     /*has_threads=*/false, /*half_activations=*/true});
  }
  return kinds;
}

}  // namespace

const std::vector<DeviceKind>& device_kinds() {
  static const std::vector<DeviceKind> kinds = find_device_kinds();
  return kinds;
}

std::vector<int> thread_counts(const DeviceKind& kind) {
  return kind.has_threads ? std::vector<int>{1, 2, 3} : std::vector<int>{1};
}

namespace {

// These return the stored form of values, and the NaN that stands where no value is.
std::vector<std::byte> encode(DType type, const std::vector<float>& values) {
  std::vector<std::byte> bytes(static_cast<size_t>(row_bytes(type, std::ssize(values))));
  for (size_t i = 0; i < values.size(); ++i) {
    if (type == DType::kF32) {
      std::memcpy(bytes.data() + 4 * i, &values[i], 4);
      continue;
    }
    const uint16_t bits =
        type == DType::kF16 ? to_half(values[i]).bits : to_bfloat16(values[i]).bits;
    std::memcpy(bytes.data() + 2 * i, &bits, 2);
  }
  return bytes;
}
std::span<const std::byte> poison_of(DType type) {
  static constexpr uint32_t kFloat = 0x7fc0dead;
  static constexpr uint16_t kHalf = 0x7fed;  // in F16 and in BF16
  return type == DType::kF32 ? std::as_bytes(std::span(&kFloat, 1))
                             : std::as_bytes(std::span(&kHalf, 1));
}

}  // namespace

std::vector<float> rounded(std::vector<float> values, DType type) {
  const std::vector<std::byte> stored = encode(type, values);
  dequantize_reference(type, stored.data(), values.data(), std::ssize(values));
  return values;
}

Matrix::Matrix(TestDevice& device, int64_t rows, int64_t cols, DType type)
    : device_(device), elements_(2 * kGuard + rows * (cols + gap_of(device.kind(), type))) {
  const std::span<const std::byte> poison = poison_of(type);
  std::vector<std::byte> all;
  for (int64_t i = 0; i < elements_; ++i) all.insert(all.end(), poison.begin(), poison.end());
  buffer_ = device.device().allocate(all.size(), MemoryTag::kActivations);
  view_ = {type, rows, cols, cols + gap_of(device.kind(), type),
           buffer_.data() + row_bytes(type, kGuard)};
  upload(all);
}

Matrix::Matrix(TestDevice& device, int64_t rows, int64_t cols, const std::vector<float>& values,
               DType type)
    : Matrix(device, rows, cols, type) {
  write(values);
}

size_t Matrix::offset_of(int64_t row) const {
  return static_cast<size_t>(row_bytes(view_.dtype, kGuard + row * view_.stride));
}

void Matrix::write(const std::vector<float>& values) {
  ASSERT_EQ(static_cast<int64_t>(values.size()), view_.rows * view_.cols);
  std::vector<std::byte> all = download();
  const std::vector<std::byte> stored = encode(view_.dtype, values);
  const auto row = static_cast<size_t>(row_bytes(view_.dtype, view_.cols));
  for (int64_t i = 0; i < view_.rows; ++i)
    std::memcpy(all.data() + offset_of(i), stored.data() + static_cast<size_t>(i) * row, row);
  upload(all);
}

std::vector<std::byte> Matrix::download() const {
  std::vector<std::byte> all(static_cast<size_t>(row_bytes(view_.dtype, elements_)));
  device_.download(all.data(), buffer_.data(), all.size());
  return all;
}

void Matrix::upload(const std::vector<std::byte>& all) const {
  device_.upload(buffer_.data(), all.data(), all.size());
}

std::vector<float> Matrix::read() const {
  const std::vector<std::byte> all = download();
  std::vector<float> values(static_cast<size_t>(view_.rows * view_.cols));
  for (int64_t i = 0; i < view_.rows; ++i) {
    dequantize_reference(view_.dtype, all.data() + offset_of(i), values.data() + i * view_.cols,
                         view_.cols);
  }
  return values;
}

void Matrix::expect_guards() const {
  const std::vector<std::byte> all = download();
  const std::span<const std::byte> poison = poison_of(view_.dtype);
  for (int64_t i = 0; i < elements_; ++i) {
    const int64_t inside = i - kGuard;
    const bool element =
        inside >= 0 && inside < view_.rows * view_.stride && inside % view_.stride < view_.cols;
    if (element) continue;
    const auto at = static_cast<size_t>(i) * poison.size();
    ASSERT_EQ(std::memcmp(all.data() + at, poison.data(), poison.size()), 0)
        << "guard " << i << " changed";
  }
}

Weights::Weights(TestDevice& device, DType type, int64_t rows, int64_t cols,
                 const std::vector<std::byte>& stored, WeightLayout layout)
    : values_(static_cast<size_t>(rows * cols)) {
  buffer_ = device.device().allocate(stored.size() + 1, MemoryTag::kWeights);
  auto bytes = stored;
  if (layout == WeightLayout::kGroups16) {
    pack_groups(type, bytes.data(), bytes.data(), rows / kGroupRows, cols);
  }
  std::byte* const at = buffer_.data() + (device.kind().any_alignment ? 1 : 0);
  device.upload(at, bytes.data(), bytes.size());
  view_ = {type, rows, cols, at, layout};
  dequantize_reference(type, stored.data(), values_.data(), rows * cols);
}

std::vector<float> random_floats(int64_t count, uint32_t seed, float deviation) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0, deviation);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = normal(generator);
  return values;
}

std::vector<std::byte> random_stored(DType type, int64_t count, uint32_t seed) {
  // Tests ask for the same few matrices again and again; making one costs more than using it.
  static std::map<std::tuple<DType, int64_t, uint32_t>, std::vector<std::byte>> made;
  const auto [place, is_new] = made.try_emplace({type, count, seed});
  if (is_new) {
    place->second.resize(static_cast<size_t>(row_bytes(type, count)));
    fill_random(type, place->second.data(), count, seed, 0.5F);
  }
  return place->second;
}

Weights random_weights(TestDevice& device, DType type, int64_t rows, int64_t cols, uint32_t seed,
                       WeightLayout layout) {
  return {device, type, rows, cols, random_stored(type, rows * cols, seed), layout};
}

std::vector<StoredCase> stored_cases() {
  std::vector<StoredCase> cases;
  for (const DeviceKind& kind : device_kinds()) {
    const auto device = kind.make(1);
    for (const DType type : kAllDTypes) {
      cases.emplace_back(kind, type, WeightLayout::kRows);
      const WeightLayout preferred = device->preferred_layout(type, 256, 256);
      if (preferred != WeightLayout::kRows) cases.emplace_back(kind, type, preferred);
    }
  }
  return cases;
}

std::string stored_case_name(const testing::TestParamInfo<StoredCase>& info) {
  const auto& [kind, type, layout] = info.param;
  return kind.name + "_" + std::string(dtype_name(type)) +
         (layout == WeightLayout::kRows ? "" : "_packed");
}

double nmse(const std::vector<float>& actual, const std::vector<double>& expected) {
  if (actual.size() != expected.size()) return std::numeric_limits<double>::infinity();
  double error = 0, power = 0;
  for (size_t i = 0; i < actual.size(); ++i) {
    const double difference = double{actual[i]} - expected[i];
    if (!std::isfinite(difference)) return std::numeric_limits<double>::infinity();
    error += difference * difference;
    power += expected[i] * expected[i];
  }
  return power == 0 ? error : error / power;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * 4) == 0;
}

}  // namespace spillway::parity
