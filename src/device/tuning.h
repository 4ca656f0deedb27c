// SPDX-License-Identifier: Apache-2.0
// Says which kind of kernel multiplies a matrix with how many tokens: the lookup table of
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

// The numbers of tokens at which one kind of kernel begins to beat the one before: GEMV below m1
// tokens, flat from m1, GEMM from m2. One token is not measured: it gets GEMV, or the device's own
// choice (m1 = 1).
struct InflectionPoints {
  int32_t m1 = 2;
  int32_t m2 = 16;
  bool operator==(const InflectionPoints&) const = default;
};
inline constexpr int32_t kMinInflection = 2;  // the least that is measured
inline constexpr int32_t kNeverInflection = std::numeric_limits<int32_t>::max();

constexpr LinearKernel kernel_at(const InflectionPoints& points, int64_t tokens) {
  if (tokens < points.m1) return LinearKernel::kGemv;
  return tokens < points.m2 ? LinearKernel::kFlat : LinearKernel::kGemm;
}

// A measurement holds for the matrices of one type, layout and shape.
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

// Bounds of a model's attention scores q . k * scale, as measured once. The unified maximum of
// FlashDecoding++ (section 3) is chosen by them.
struct ScoreBounds {
  float lowest_top = 0;  // the lowest among the largest scores of all rows
  float highest = 0;     // the highest of all scores
  bool operator==(const ScoreBounds&) const = default;
};

// The measured points of one machine. Results depend on the table (kernels round differently), so
// it is an input like the weights: made by measuring once (measure/), never while a model runs.
// Reading is thread-safe.
class TuningTable {
 public:
  TuningTable() = default;
  // Makes a table that has these points for every shape that is not set, for measuring and tests.
  explicit TuningTable(const InflectionPoints& others) : others_(others) {}

  void set(const LinearShape& shape, const InflectionPoints& points) { points_[shape] = points; }
  // Returns nullopt if the device should choose.
  [[nodiscard]] std::optional<InflectionPoints> try_points(const LinearShape& shape) const;
  // Returns the points that were set, in the order of LinearShape.
  const std::map<LinearShape, InflectionPoints>& measured() const { return points_; }
  // Bounds of attention scores are kept by the model's name.
  void set_scores(const std::string& model, const ScoreBounds& bounds) { scores_[model] = bounds; }
  [[nodiscard]] std::optional<ScoreBounds> try_scores(const std::string& model) const;
  const std::map<std::string, ScoreBounds>& scores() const { return scores_; }

  // Adds the entries of `newer`, which replace older ones.
  void merge(const TuningTable& newer);

  bool operator==(const TuningTable&) const = default;

 private:
  std::optional<InflectionPoints> others_;
  std::map<LinearShape, InflectionPoints> points_;
  std::map<std::string, ScoreBounds> scores_;
};

// Identifies the machine of measurements; with another number of threads it is another machine.
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
