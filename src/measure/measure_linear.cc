// SPDX-License-Identifier: Apache-2.0
#include "measure/measure_linear.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <map>
#include <utility>
#include <vector>

#include "base/error.h"
#include "measure/inflection_points.h"

namespace spillway {
namespace {

constexpr int kRepeats = 7;
constexpr int kLaunches = 24;  // queued before the queue is waited for
// A shape needs about this many comparisons; each may take the corresponding part of its time.
constexpr double kComparisons = 10;
// A piece has this many elements per worker: enough to keep it busy for tens of microseconds.
constexpr int64_t kWorkerElements = int64_t{1} << 20;
constexpr int64_t kMinPieceElements = int64_t{4} << 20;

// Returns a table that makes linear() take one kind of kernel, if it has that.
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

// On the host, splits matrices into pieces so that a product of the most tokens stays short. Every
// matrix of the shape gives pieces.
std::vector<MatrixGroup> pieces_of(const Device& device, std::span<const MatrixGroup> groups) {
  if (!device.host_visible()) return {groups.begin(), groups.end()};
  const int64_t elements = std::max(kMinPieceElements, kWorkerElements * device.info().threads);
  std::vector<MatrixGroup> pieces;
  for (const MatrixGroup& group : groups) {
    const WeightView& w = group.front();
    const int64_t wanted = std::max<int64_t>(1, elements / w.cols);
    const int64_t rows = std::min(w.rows, (wanted + kGroupRows - 1) / kGroupRows * kGroupRows);
    for (int64_t first = 0; first + rows <= w.rows; first += rows) {
      pieces.push_back({w.slice(first, rows)});
    }
  }
  return pieces;
}

LinearShape shape_of_group(const MatrixGroup& group) {
  LinearShape shape = shape_of(group.front());
  for (size_t i = 1; i < group.size(); ++i) shape.n += group[i].rows;
  return shape;
}

// Times the kinds of kernel on the matrices of one shape. Owns the activations for it.
class ShapeTimer {
 public:
  ShapeTimer(Device& device, std::span<const MatrixGroup> groups, const MeasureOptions& options,
             double share_s)
      : device_(device),
        options_(options),
        pieces_(pieces_of(device, groups)),
        launches_(device.host_visible() ? 1 : kLaunches),
        comparison_s_(share_s / kComparisons) {
    const int64_t most = compared_tokens().back();
    const WeightView& w = pieces_.front().front();
    const DType type = device.activation_type(w.dtype);
    x_ = take(x_buffer_, type, most, w.cols);
    out_ = take(out_buffer_, type, most, shape_of_group(pieces_.front()).n);
    // Zeros suffice on a device whose time depends on its memory; a CPU's kernels look at the
    // values that they quantize.
    std::vector<float> values(x_buffer_.bytes() / sizeof(float));
    if (type == DType::kF32) {
      for (size_t i = 0; i < values.size(); ++i)
        values[i] = static_cast<float>((i * 37) % 251) / 125.0F - 1.0F;
    }
    device.copy_to_device(x_.data, reinterpret_cast<const std::byte*>(values.data()),
                          values.size() * sizeof(float));
  }
  ~ShapeTimer() { device_.ops().set_tuning(nullptr); }
  ShapeTimer(const ShapeTimer&) = delete;
  ShapeTimer& operator=(const ShapeTimer&) = delete;

  bool has_gemm() {
    const TuningTable table = forced(LinearKernel::kGemm);
    device_.ops().set_tuning(&table);
    const LinearKernel kernel =
        device_.ops().linear_kernel(pieces_.front().front(), compared_tokens().back());
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

  Activations take(Buffer& buffer, DType type, int64_t rows, int64_t cols) {
    const auto bytes = static_cast<size_t>(row_bytes(type, rows * cols) + 3) / 4 * 4;
    buffer = device_.allocate(bytes, MemoryTag::kActivations);
    return {type, rows, cols, cols, buffer.data()};
  }

  double time(LinearKernel kernel, int tokens) {
    const TuningTable table = forced(kernel);
    device_.ops().set_tuning(&table);
    const double start = now();
    for (int i = 0; i < launches_; ++i) multiply(pieces_[next_++ % pieces_.size()], tokens);
    device_.synchronize();
    const double took = (now() - start) / launches_;
    device_.ops().set_tuning(nullptr);
    return took;
  }

  void multiply(const MatrixGroup& group, int tokens) {
    const Activations out = out_.row_range(0, tokens);
    std::vector<Projection> parts;
    int64_t at = 0;
    for (const WeightView& w : group) {
      parts.push_back({w, {}, out.columns(at, w.rows)});
      at += w.rows;
    }
    device_.ops().linears(parts, x_.row_range(0, tokens));
  }

  Device& device_;
  const MeasureOptions& options_;
  std::vector<MatrixGroup> pieces_;
  int launches_;
  double comparison_s_;
  size_t next_ = 0;
  Buffer x_buffer_, out_buffer_;
  Activations x_, out_;
};

}  // namespace

std::vector<MatrixGroup> multiplied_matrices(const Device& device, const ModelWeights& weights) {
  std::vector<MatrixGroup> groups;
  const auto add = [&](const ListWeights& list) {
    for (const auto& op : list.ops) {
      MatrixGroup group;
      for (const MatrixWeights& matrix : op) {
        if (!matrix.is_matrix()) continue;
        const WeightView& w = matrix.weight;
        const bool together = !group.empty() && !device.host_visible() &&
                              group.front().dtype == w.dtype && group.front().layout == w.layout;
        if (!group.empty() && !together) groups.push_back(std::exchange(group, {}));
        group.push_back(w);
      }
      if (!group.empty()) groups.push_back(std::move(group));
    }
  };
  add(weights.embedding);
  for (const ListWeights& layer : weights.layers) add(layer);
  add(weights.head);
  return groups;
}

TuningTable measure_linear(Device& device, std::span<const MatrixGroup> groups,
                           const MeasureOptions& options) {
  std::map<LinearShape, std::vector<MatrixGroup>> shapes;
  for (const MatrixGroup& group : groups) shapes[shape_of_group(group)].push_back(group);
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
