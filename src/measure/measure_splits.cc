// SPDX-License-Identifier: Apache-2.0
#include "measure/measure_splits.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <future>
#include <memory>
#include <set>

#include "base/error.h"
#include "measure/seconds_since.h"
#include "memory/pinned_buffer.h"
#include "plan/linear_shares.h"
#include "plan/streaming_schedule.h"
#include "tensor/packed_layout.h"
#include "tensor/random_fill.h"

namespace spillway {
namespace {

// Shares are measured at these distances from the first guess; the paper's gamma and lambda.
constexpr double kAround[] = {-0.10, -0.05, 0.0, 0.05, 0.10};
constexpr double kLeast = 0.03, kMost = 0.97;  // so that both sides have something to measure

// A linear op whose matrix is in host memory, in several copies, which the CPU and the link use in
// rotation.
class SharedLinearLoad {
 public:
  SharedLinearLoad(Device& host, Device& device, const SplitShape& shape,
                   const MeasureSplitsOptions& options)
      : host_(host), device_(device), shape_(shape) {
    whole_ = {shape.type, shape.rows, shape.cols, nullptr,
              shape.rows >= kGroupRows ? device.preferred_layout(shape.type, shape.rows, shape.cols)
                                       : WeightLayout::kRows};
    const auto bytes = static_cast<size_t>(whole_.bytes());
    copies_ = std::max<size_t>(2, options.rotate_bytes / bytes + 1);
    memory_ = PinnedBuffer(host, device, copies_ * bytes, MemoryTag::kWeights);
    fill_random(shape.type, memory_.data(), shape.rows * shape.cols, 1, 0.02F);
    if (whole_.layout == WeightLayout::kGroups16) {
      pack_groups(shape.type, memory_.data(), memory_.data(), shape.rows / kGroupRows, shape.cols);
    }
    for (size_t i = 1; i < copies_; ++i)
      std::memcpy(memory_.data() + i * bytes, memory_.data(), bytes);
    const int64_t tokens = std::ranges::max(options.tokens);
    const DType inner = device.activation_type(shape.type);
    x_ = host.allocate(static_cast<size_t>(4 * tokens * shape.cols), MemoryTag::kActivations);
    out_ = host.allocate(static_cast<size_t>(4 * tokens * shape.rows), MemoryTag::kActivations);
    fill_random(DType::kF32, x_.data(), tokens * shape.cols, 2, 0.5F);
    device_x_ = device.allocate(static_cast<size_t>(row_bytes(inner, tokens * shape.cols)),
                                MemoryTag::kActivations);
    device_out_ = device.allocate(static_cast<size_t>(row_bytes(inner, tokens * shape.rows)),
                                  MemoryTag::kActivations);
    std::vector<std::byte> values(device_x_.bytes());
    fill_random(inner, values.data(), tokens * shape.cols, 2, 0.5F);
    device.copy_to_device(device_x_.data(), values.data(), values.size());
    // Segments have whole groups of rows, as in a step.
    const auto rows = static_cast<int64_t>(kStreamSegmentBytes) / whole_.row_bytes();
    piece_rows_ = std::clamp<int64_t>(rows / kGroupRows * kGroupRows, kGroupRows,
                                      std::max<int64_t>(shape.rows, kGroupRows));
    for (Slot& slot : slots_) {
      slot.memory = device.allocate(static_cast<size_t>(piece_rows_ * whole_.row_bytes()),
                                    MemoryTag::kStaging);
      slot.loaded = device.make_event();
      slot.left = device.make_event();
    }
    stream_ = device.make_stream();
  }
  ~SharedLinearLoad() {
    stream_.reset();
    device_.synchronize();
  }
  SharedLinearLoad(const SharedLinearLoad&) = delete;
  SharedLinearLoad& operator=(const SharedLinearLoad&) = delete;

  int64_t cut_at(double share) const {
    const auto rows = static_cast<int64_t>(share * static_cast<double>(shape_.rows));
    return std::clamp<int64_t>(rows / kGroupRows * kGroupRows, 0, shape_.rows);
  }
  // Multiplies the rows before the split on the CPU.
  void multiply_on_cpu(int64_t split, int64_t tokens) {
    if (split == 0) return;
    host_.ops().linear(rows_of(cpu_turn_++, 0, split), {},
                       {DType::kF32, tokens, shape_.cols, shape_.cols, x_.data()},
                       {DType::kF32, tokens, split, split, out_.data()}, LinearMode::kStore);
  }
  // Copies the rows after the split to the device and multiplies them there.
  void bring_and_multiply(int64_t split, int64_t tokens) {
    const DType inner = device_.activation_type(shape_.type);
    const size_t turn = link_turn_++;
    for (int64_t first = split; first < shape_.rows; first += piece_rows_) {
      const WeightView from = rows_of(turn, first, std::min(piece_rows_, shape_.rows - first));
      Slot& slot = slots_[slot_turn_++ % slots_.size()];
      stream_->wait(*slot.left);
      const CopyPiece piece{slot.memory.data(), from.data, static_cast<size_t>(from.bytes())};
      stream_->copy_to_device({&piece, 1});
      stream_->record(*slot.loaded);
      device_.compute().wait(*slot.loaded);
      WeightView there = from;
      there.data = slot.memory.data();
      device_.ops().linear(there, {}, {inner, tokens, shape_.cols, shape_.cols, device_x_.data()},
                           {inner, tokens, from.rows, from.rows, device_out_.data()},
                           LinearMode::kStore);
      device_.compute().record(*slot.left);
    }
  }
  Device& device() { return device_; }

 private:
  WeightView rows_of(size_t turn, int64_t first, int64_t count) {
    WeightView view = whole_;
    view.data = memory_.data() + (turn % copies_) * static_cast<size_t>(whole_.bytes());
    return count == whole_.rows ? view : view.slice(first, count);
  }

  struct Slot {
    Buffer memory;
    std::unique_ptr<DeviceEvent> loaded, left;
  };
  Device& host_;
  Device& device_;
  const SplitShape shape_;
  WeightView whole_;
  size_t copies_ = 2;
  PinnedBuffer memory_;
  Buffer x_, out_, device_x_, device_out_;
  int64_t piece_rows_ = kGroupRows;
  std::array<Slot, 3> slots_;
  std::unique_ptr<DeviceStream> stream_;
  size_t cpu_turn_ = 0, link_turn_ = 0, slot_turn_ = 0;
};

struct BothSeconds {
  double cpu = 0, link = 0;
};

// Returns the seconds of both parts of an op, each measured while the other runs too.
BothSeconds time_beside(SharedLinearLoad& load, double share, int64_t tokens, double seconds,
                        MeasurePace& pace) {
  const int64_t split = load.cut_at(share);
  load.multiply_on_cpu(split, tokens);
  load.bring_and_multiply(split, tokens);
  load.device().synchronize();
  pace.check();
  std::atomic<bool> enough = false;
  auto on_cpu = std::async(std::launch::async, [&] {
    const auto start = Clock::now();
    int count = 0;
    for (; count == 0 || !enough.load(); ++count) load.multiply_on_cpu(split, tokens);
    return seconds_since(start) / count;
  });
  BothSeconds both;
  try {
    const auto start = Clock::now();
    int count = 0;
    // Two ops are queued at a time, so that the link never idles and the queue stays short.
    constexpr int kQueued = 2;
    for (; count == 0 || seconds_since(start) < seconds; count += kQueued) {
      for (int i = 0; i < kQueued; ++i) load.bring_and_multiply(split, tokens);
      load.device().synchronize();
    }
    both.link = seconds_since(start) / count;
  } catch (...) {
    enough = true;
    on_cpu.wait();
    throw;
  }
  enough = true;
  both.cpu = on_cpu.get();
  return both;
}

SplitCurve measure_curve(SharedLinearLoad& load, const SplitShape& shape, int64_t tokens,
                         double start, double point_s, MeasurePace& pace) {
  SplitCurve curve{.shape = shape, .tokens = tokens};
  std::vector<std::pair<double, double>> cpu, link;
  // If the curves cross outside the measured range, a second round measures around the crossing.
  for (int round = 0; round < 2; ++round) {
    double low = 1, high = 0;
    std::set<int64_t> cuts;
    for (const double around : kAround) {
      const double wanted = std::clamp(start + around, kLeast, kMost);
      const int64_t split = load.cut_at(wanted);
      if (!cuts.insert(split).second) continue;
      const double share = static_cast<double>(split) / static_cast<double>(shape.rows);
      const BothSeconds both = time_beside(load, wanted, tokens, point_s, pace);
      if (split > 0) cpu.emplace_back(share, both.cpu);
      if (split < shape.rows) link.emplace_back(1 - share, both.link);
      low = std::min(low, share);
      high = std::max(high, share);
    }
    if (cpu.size() < 2 || link.size() < 2) return curve;
    curve.cpu = fit_line(cpu);
    curve.link = fit_line(link);
    start = curve.crossing();
    if (start >= low && start <= high) break;
  }
  return curve;
}

}  // namespace

std::vector<SplitShape> split_shapes(const Model& model) {
  std::vector<SplitShape> shapes;
  const auto add = [&](const SplitShape& shape) {
    if (std::ranges::find(shapes, shape) == shapes.end()) shapes.push_back(shape);
  };
  for (const SplitOp& op : split_ops(model)) add(op.shape);
  return shapes;
}

std::vector<SplitCurve> measure_splits(Device& host, Device& device, const Hardware& hardware,
                                       const std::vector<SplitShape>& shapes,
                                       const MeasureSplitsOptions& options, MeasurePace& pace) {
  SPW_ASSERT(!device.host_visible() && !options.tokens.empty());
  std::vector<SplitCurve> curves;
  for (const SplitShape& shape : shapes) {
    if (shape.rows < 4 * kGroupRows) continue;  // too small to split
    pace.begin(fmt::format("{} {} x {}", dtype_name(shape.type), shape.rows, shape.cols),
               1.0 / static_cast<double>(shapes.size()));
    pace.check();
    SharedLinearLoad load(host, device, shape, options);
    for (const int64_t tokens : options.tokens) {
      const double start = balanced_share(hardware, shape, static_cast<double>(tokens));
      SplitCurve curve = measure_curve(load, shape, tokens, start, options.point_s, pace);
      if (curve.cpu.all_s > 0 && curve.link.all_s > 0) curves.push_back(curve);
    }
  }
  return curves;
}

}  // namespace spillway
