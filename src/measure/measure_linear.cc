// SPDX-License-Identifier: Apache-2.0
#include "measure/measure_linear.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <map>

#include "base/error.h"
#include "measure/inflection_points.h"

namespace spillway {
namespace {

constexpr int kRepeats = 7;
// About as many comparisons as a shape needs; each may take that part of its time.
constexpr double kComparisons = 10;
// Elements of a piece per worker: enough to keep it busy for tens of microseconds.
constexpr int64_t kWorkerElements = int64_t{1} << 20;
constexpr int64_t kMinPieceElements = int64_t{4} << 20;

// Makes linear() take one kind of kernel, where it has that.
TuningTable forced(LinearKernel kernel) {
  switch (kernel) {
    case LinearKernel::kGemv:
      return TuningTable({kNeverInflection, kNeverInflection});
    case LinearKernel::kFlat:
      return TuningTable({kMinInflection, kNeverInflection});
    case LinearKernel::kGemm:
      break;
  }
  return TuningTable({kMinInflection, kMinInflection});
}

double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Cut so that a product of the most tokens stays short. Every matrix of the shape gives pieces.
std::vector<WeightView> pieces_of(std::span<const WeightView> matrices, int threads) {
  const int64_t elements = std::max(kMinPieceElements, kWorkerElements * threads);
  std::vector<WeightView> pieces;
  for (const WeightView& w : matrices) {
    const int64_t wanted = std::max<int64_t>(1, elements / w.cols);
    const int64_t rows = std::min(w.rows, (wanted + kGroupRows - 1) / kGroupRows * kGroupRows);
    for (int64_t first = 0; first + rows <= w.rows; first += rows) {
      pieces.push_back(w.slice(first, rows));
    }
  }
  return pieces;
}

// Times the kinds of kernel on the matrices of one shape. Owns activations for it.
class ShapeTimer {
 public:
  ShapeTimer(Device& device, std::span<const WeightView> matrices, const MeasureOptions& options,
             double share_s)
      : device_(device),
        options_(options),
        pieces_(pieces_of(matrices, device.info().threads)),
        comparison_s_(share_s / kComparisons) {
    const int64_t most = compared_tokens().back();
    x_ = take(x_buffer_, most, pieces_.front().cols);
    out_ = take(out_buffer_, most, pieces_.front().rows);
    for (int64_t i = 0; i < most * x_.cols; ++i) {
      x_.f32()[i] = static_cast<float>((i * 37) % 251) / 125.0F - 1.0F;
    }
  }
  ~ShapeTimer() { device_.ops().set_tuning(nullptr); }
  ShapeTimer(const ShapeTimer&) = delete;
  ShapeTimer& operator=(const ShapeTimer&) = delete;

  bool has_gemm() {
    const TuningTable table = forced(LinearKernel::kGemm);
    device_.ops().set_tuning(&table);
    const LinearKernel kernel =
        device_.ops().linear_kernel(pieces_.front(), compared_tokens().back());
    device_.ops().set_tuning(nullptr);
    return kernel == LinearKernel::kGemm;
  }

  KernelTimes compare(LinearKernel first, LinearKernel second, int tokens) {
    const double start = now();
    KernelTimes best{std::numeric_limits<double>::infinity(),
                     std::numeric_limits<double>::infinity()};
    for (int i = 0; i < kRepeats && (i == 0 || now() - start < comparison_s_); ++i) {
      SPW_CHECK(options_.cancel == nullptr || !options_.cancel->load(), kCancelled,
                "measuring was stopped");
      best.first = std::min(best.first, time(first, tokens));
      best.second = std::min(best.second, time(second, tokens));
    }
    return best;
  }

 private:
  double now() const { return options_.seconds_now ? options_.seconds_now() : steady_seconds(); }

  Activations take(Buffer& buffer, int64_t rows, int64_t cols) {
    buffer =
        device_.allocate(static_cast<size_t>(rows * cols) * sizeof(float), MemoryTag::kActivations);
    return {DType::kF32, rows, cols, cols, buffer.data()};
  }

  double time(LinearKernel kernel, int tokens) {
    const TuningTable table = forced(kernel);
    device_.ops().set_tuning(&table);
    const WeightView& w = pieces_[next_++ % pieces_.size()];
    const double start = now();
    device_.ops().linear(w, {}, x_.row_range(0, tokens), out_.row_range(0, tokens),
                         LinearMode::kStore);
    device_.synchronize();
    const double took = now() - start;
    device_.ops().set_tuning(nullptr);
    return took;
  }

  Device& device_;
  const MeasureOptions& options_;
  std::vector<WeightView> pieces_;
  double comparison_s_;
  size_t next_ = 0;
  Buffer x_buffer_, out_buffer_;
  Activations x_, out_;
};

}  // namespace

std::vector<WeightView> multiplied_matrices(const ModelWeights& weights) {
  std::vector<WeightView> matrices;
  const auto add = [&](const WeightView& w) {
    if (!w.empty()) matrices.push_back(w);
  };
  add(weights.project_in);
  for (const LayerWeights& layer : weights.layers) {
    for (const LinearWeights* linear : {&layer.query, &layer.key, &layer.value,
                                        &layer.attention_out, &layer.gate, &layer.up, &layer.down})
      add(linear->weight);
  }
  add(weights.project_out);
  add(weights.head);
  return matrices;
}

TuningTable measure_linear(Device& device, std::span<const WeightView> matrices,
                           const MeasureOptions& options) {
  std::map<LinearShape, std::vector<WeightView>> shapes;
  for (const WeightView& w : matrices) shapes[shape_of(w)].push_back(w);
  TuningTable table;
  uint64_t done = 0;
  for (const auto& [shape, same] : shapes) {
    if (options.progress) options.progress(done, shapes.size());
    ShapeTimer timer(device, same, options, options.budget_s / static_cast<double>(shapes.size()));
    const auto compare = [&](LinearKernel first, LinearKernel second, int m) {
      return timer.compare(first, second, m);
    };
    table.set(shape, find_inflection_points(compare, timer.has_gemm()));
    ++done;
  }
  if (options.progress) options.progress(done, shapes.size());
  return table;
}

}  // namespace spillway
