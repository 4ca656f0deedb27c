// SPDX-License-Identifier: Apache-2.0
// Which kind of kernel multiplies a matrix with how many tokens: the lookup table of
// FlashDecoding++, section 5.
#pragma once

#include <compare>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>

#include "device/device.h"
#include "tensor/dtype.h"
#include "tensor/tensor_view.h"

namespace spillway {

// Where one kind of kernel begins to beat the one before it: GEMV below m1 tokens, flat from m1,
// GEMM from m2. What one token gets is not measured: it is GEMV's, or the device's own choice (m1 =
// 1).
struct InflectionPoints {
  int32_t m1 = 2;
  int32_t m2 = 16;
  bool operator==(const InflectionPoints&) const = default;
};
inline constexpr int32_t kMinInflection = 2;  // of what is measured
inline constexpr int32_t kNeverInflection = std::numeric_limits<int32_t>::max();

constexpr LinearKernel kernel_at(const InflectionPoints& points, int64_t tokens) {
  if (tokens < points.m1) return LinearKernel::kGemv;
  return tokens < points.m2 ? LinearKernel::kFlat : LinearKernel::kGemm;
}

// What a measurement holds for: the matrices of one type, layout and shape.
struct LinearShape {
  DType dtype = DType::kF32;
  WeightLayout layout = WeightLayout::kRows;
  int64_t n = 0;  // rows: outputs
  int64_t k = 0;  // columns: inputs
  auto operator<=>(const LinearShape&) const = default;
};
inline LinearShape shape_of(const WeightView& w) {
  return {w.dtype, w.layout, w.whole_rows(), w.cols};
}

// Of a model's attention scores q . k * scale, as they were seen once: what the unified maximum of
// FlashDecoding++ (section 3) is chosen by.
struct ScoreBounds {
  float lowest_top = 0;  // of the largest score of each row
  float highest = 0;     // of all scores
  bool operator==(const ScoreBounds&) const = default;
};

// Results depend on it (kernels round differently), so it is an input like the weights: made by
// measuring once (measure/), never while a model runs. Reading is thread-safe.
class TuningTable {
 public:
  TuningTable() = default;
  // Every shape that is not set has these points: for measuring and tests.
  explicit TuningTable(const InflectionPoints& others) : others_(others) {}

  void set(const LinearShape& shape, const InflectionPoints& points) { points_[shape] = points; }
  // nullopt: the device knows best.
  [[nodiscard]] std::optional<InflectionPoints> try_points(const LinearShape& shape) const;
  // Those that were set, in the order of LinearShape.
  const std::map<LinearShape, InflectionPoints>& measured() const { return points_; }
  // By the model's name.
  void set_scores(const std::string& model, const ScoreBounds& bounds) { scores_[model] = bounds; }
  [[nodiscard]] std::optional<ScoreBounds> try_scores(const std::string& model) const;
  const std::map<std::string, ScoreBounds>& scores() const { return scores_; }

  // Takes those of `newer`, which win.
  void merge(const TuningTable& newer);

  bool operator==(const TuningTable&) const = default;

 private:
  std::optional<InflectionPoints> others_;
  std::map<LinearShape, InflectionPoints> points_;
  std::map<std::string, ScoreBounds> scores_;
};

// Whose measurements they are; another number of threads is another machine.
struct TunedMachine {
  std::string device;    // "cpu"
  std::string hardware;  // "Neoverse-V1"
  std::string features;
  int threads = 1;
  auto operator<=>(const TunedMachine&) const = default;
};
TunedMachine tuned_machine(const DeviceInfo& info);

using TuningTables = std::map<TunedMachine, TuningTable>;

}  // namespace spillway
