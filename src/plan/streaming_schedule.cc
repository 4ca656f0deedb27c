// SPDX-License-Identifier: Apache-2.0
#include "plan/streaming_schedule.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/error.h"
#include "plan/weight_homes.h"
#include "storage/aligned_buffer.h"
#include "storage/extent_reader.h"

namespace spillway {
namespace {

struct Matrix {
  int number = 0;  // index among the op's matrices
  int64_t rows = 0, row_bytes = 0;
  Tier home = Tier::kHost;
  size_t weight = 0;
};

int64_t row_bytes_of(const BoundWeight& weight) {
  return row_bytes(weight.dtype, weight.slot.cols);
}
int64_t down_to_group(int64_t rows) { return rows / kGroupRows * kGroupRows; }
int64_t up_to_group(int64_t rows) { return (rows + kGroupRows - 1) / kGroupRows * kGroupRows; }

// Several matrices stacked by rows, treated as one. Finds the row at a number of bytes from the
// beginning.
class Stacked {
 public:
  explicit Stacked(const std::vector<Matrix>& matrices) : matrices_(matrices) {}

  int64_t bytes() const {
    int64_t all = 0;
    for (const Matrix& matrix : matrices_) all += matrix.rows * matrix.row_bytes;
    return all;
  }
  // A matrix and a row of it, at a multiple of 16 or at an end.
  struct Place {
    size_t matrix = 0;
    int64_t row = 0;
  };
  Place end() const { return {matrices_.size(), 0}; }
  // Returns the last place that is not after `bytes` bytes.
  Place at(int64_t bytes) const {
    if (bytes >= this->bytes()) return end();
    for (size_t i = 0; i < matrices_.size(); ++i) {
      const Matrix& matrix = matrices_[i];
      const int64_t rows = down_to_group(bytes / matrix.row_bytes);
      if (rows < matrix.rows) return {i, rows};
      bytes -= matrix.rows * matrix.row_bytes;
    }
    return end();
  }
  OpRows between(const Place& from, const Place& to) const {
    OpRows rows;
    for (size_t i = from.matrix; i < matrices_.size() && i <= to.matrix; ++i) {
      const int64_t first = i == from.matrix ? from.row : 0;
      const int64_t last = i == to.matrix ? to.row : matrices_[i].rows;
      if (last > first)
        rows.push_back({matrices_[i].number, first, last - first, matrices_[i].weight});
    }
    return rows;
  }

 private:
  const std::vector<Matrix>& matrices_;
};

int64_t segments_for(int64_t bytes, uint64_t segment_bytes) {
  const auto most = static_cast<int64_t>(segment_bytes);
  // Avoids an overflow if `most` is the largest number.
  return bytes <= most ? 1 : (bytes - 1) / most + 1;
}

// Splits matrices that are stacked by rows.
void cut_stacked(const Stacked& all, double cpu_share, uint64_t segment_bytes, StreamedLinear& to) {
  const int64_t bytes = all.bytes();
  const auto of_cpu = static_cast<int64_t>(std::llround(cpu_share * static_cast<double>(bytes)));
  Stacked::Place from = all.at(of_cpu);
  to.on_cpu = all.between({}, from);
  const int64_t segments = segments_for(bytes - of_cpu, segment_bytes);
  to.segments.reserve(static_cast<size_t>(segments));
  for (int64_t i = 1; i <= segments; ++i) {
    const Stacked::Place until =
        i == segments ? all.end() : all.at(of_cpu + (bytes - of_cpu) * i / segments);
    auto rows = all.between(from, until);
    if (!rows.empty()) to.segments.push_back(std::move(rows));
    from = until;
  }
}

// Splits gate and up at the same rows.
void cut_abreast(const std::vector<Matrix>& matrices, double cpu_share, uint64_t segment_bytes,
                 StreamedLinear& to) {
  const int64_t rows = matrices.front().rows;
  int64_t row_bytes = 0;
  for (const Matrix& matrix : matrices) {
    SPW_ASSERT(matrix.rows == rows);
    row_bytes += matrix.row_bytes;
  }
  const auto both = [&](int64_t first, int64_t count) {
    OpRows of;
    for (const Matrix& matrix : matrices)
      of.push_back({matrix.number, first, count, matrix.weight});
    return of;
  };
  int64_t first = static_cast<int64_t>(std::llround(cpu_share * static_cast<double>(rows)));
  if (first < rows) first = down_to_group(first);
  if (first > 0) to.on_cpu = both(0, first);
  const int64_t left = rows - first;
  if (left == 0) return;
  const int64_t segments = segments_for(left * row_bytes, segment_bytes);
  const int64_t each = up_to_group((left + segments - 1) / segments);
  for (; first < rows; first += each)
    to.segments.push_back(both(first, std::min(each, rows - first)));
}

// With `together`, the matrices are split at the same rows.
void cut_op(const std::vector<Matrix>& matrices, bool together, double cpu_share,
            uint64_t segment_bytes, StreamedLinear& linear) {
  const bool one_home = std::ranges::all_of(
      matrices, [&](const Matrix& matrix) { return matrix.home == matrices.front().home; });
  if (!one_home || (together && matrices.size() < 2)) cpu_share = 0;
  if (together) {
    cut_abreast(matrices, cpu_share, segment_bytes, linear);
  } else {
    cut_stacked(Stacked(matrices), cpu_share, segment_bytes, linear);
  }
}

}  // namespace

std::vector<int> StreamingSchedule::slot_groups() const {
  std::vector<int> numbers;
  size_t count = 0;
  for (const StreamedLinear& linear : linears) count += linear.segments.size();
  numbers.reserve(count);
  int number = -1, layer = -1;
  for (const StreamedLinear& linear : linears) {
    for (size_t i = 0; i < linear.segments.size(); ++i) {
      if (!by_layers || linear.layer != layer || linear.layer >= layers) ++number;
      layer = linear.layer;
      numbers.push_back(number);
    }
  }
  return numbers;
}

bool StreamingSchedule::uses_cpu() const {
  return std::ranges::any_of(linears,
                             [](const StreamedLinear& linear) { return !linear.on_cpu.empty(); });
}

namespace {

// Returns the bytes of the largest layer, wherever it lives.
uint64_t largest_layer_bytes(const Model& model) {
  std::vector<uint64_t> layers(static_cast<size_t>(model.spec.layer_count()));
  for (const BoundWeight& weight : model.weights) {
    if (weight.slot.is_layer_matrix())
      layers[static_cast<size_t>(weight.slot.layer)] += aligned_weight_bytes(weight.bytes());
  }
  return *std::ranges::max_element(layers);
}

}  // namespace

StreamingSchedule streaming_schedule(const Model& model, std::span<const Tier> homes,
                                     const StreamSplit& split) {
  SPW_ASSERT(homes.size() == model.weights.size());
  const bool by_layers = split.slots == SlotContent::kLayers;
  StreamingSchedule schedule{.layers = model.spec.layer_count(), .by_layers = by_layers};
  const LoweredModel& lowered = *model.spec.lowered;
  size_t most = 1;  // the most linear ops that can be streamed
  for (const auto& layer : lowered.layers) most += layer->ops.size();
  schedule.linears.reserve(most);
  std::vector<Matrix> matrices;  // the matrices of the current op
  StreamedLinear at;
  const auto end_op = [&](uint64_t segment_bytes) {
    if (matrices.empty()) return;
    const LoweredLayer& layer = lowered.layer(at.layer);
    at.op = layer.number_of(at.spec_op);
    at.name = layer.name(at.op);
    const bool together = layer.ops[static_cast<size_t>(at.op)].finish == LinearFinish::kGate;
    cut_op(matrices, together, split.cpu.of(at.name), segment_bytes, at);
    schedule.linears.push_back(std::exchange(at, {}));
    matrices.clear();
  };
  const uint64_t of_layers = by_layers ? ~uint64_t{0} >> 1 : split.segment_bytes;
  // Weights are in the order of their use.
  for (size_t i = 0; i < homes.size(); ++i) {
    const WeightSlot& slot = model.weights[i].slot;
    if (homes[i] == Tier::kDevice || !slot.is_layer_matrix()) continue;
    if (slot.layer != at.layer || slot.op != at.spec_op) end_op(of_layers);
    at.layer = slot.layer;
    at.spec_op = slot.op;
    matrices.push_back({slot.matrix, slot.rows, row_bytes_of(model.weights[i]), homes[i], i});
  }
  end_op(of_layers);
  const BoundWeight* const head = try_head_of(model);
  if (head == nullptr) return schedule;
  const auto number = static_cast<size_t>(head - model.weights.data());
  if (homes[number] != Tier::kDevice) {
    at.layer = lowered.layer_count();
    at.spec_op = lowered.head.ops.back().op;
    matrices = {{0, head->slot.rows, row_bytes_of(*head), homes[number], number}};
    end_op(by_layers ? largest_layer_bytes(model) : split.segment_bytes);
  }
  return schedule;
}

std::vector<StreamingSchedule> streaming_schedules(const Model& model, std::span<const Tier> homes,
                                                   const std::vector<CpuLinearShare>& shares,
                                                   SlotContent slots, uint64_t segment_bytes) {
  std::vector<StreamingSchedule> schedules;
  StreamSplit split{.slots = slots, .segment_bytes = segment_bytes};
  for (const CpuLinearShare& entry : shares) {
    split.cpu = entry;
    schedules.push_back(streaming_schedule(model, homes, split));
  }
  split.cpu = {};
  schedules.push_back(streaming_schedule(model, homes, split));
  return schedules;
}

size_t schedule_for(const std::vector<CpuLinearShare>& shares, int64_t tokens) {
  size_t i = 0;
  while (i < shares.size() && tokens > shares[i].tokens) ++i;
  return i;
}

namespace {

// Returns the extents of `rows` in a file, or none if they are in host memory.
std::vector<Extent> extents_of(const DeviceTraits& traits, const Model& model,
                               std::span<const Tier> homes, const MatrixRows& rows) {
  if (homes[rows.weight] != Tier::kDisk) return {};
  const BoundWeight& weight = model.weights[rows.weight];
  if (has_rows_as_stored(weight, weight_layout(traits, model, weight)))
    return weight.file_extents(rows.first, rows.count);
  const auto row = static_cast<uint64_t>(row_bytes_of(weight));
  // In a file that this program writes.
  return extents_of_rows({}, {}, row, rows.first, rows.count);
}

}  // namespace

uint64_t disk_rows_bytes(const DeviceTraits& traits, const Model& model,
                         std::span<const Tier> homes,
                         std::span<const StreamingSchedule> schedules) {
  uint64_t most = 0;
  for (const StreamingSchedule& schedule : schedules) {
    for (const StreamedLinear& linear : schedule.linears) {
      std::vector<Extent> extents;
      for (const MatrixRows& rows : linear.on_cpu) {
        const std::vector<Extent> some = extents_of(traits, model, homes, rows);
        extents.insert(extents.end(), some.begin(), some.end());
      }
      if (!extents.empty())
        most = std::max<uint64_t>(most, ExtentReader::buffer_bytes(extents) + kDirectAlignment);
    }
  }
  return most;
}

uint64_t slot_bytes(const DeviceTraits& traits, const Model& model, std::span<const Tier> homes,
                    std::span<const StreamingSchedule> schedules) {
  const auto rows_bytes = [&](const MatrixRows& rows) {
    const BoundWeight& weight = model.weights[rows.weight];
    const int64_t bytes = rows.count * row_bytes_of(weight);
    return streamed_weight_bytes(bytes, extents_of(traits, model, homes, rows));
  };
  uint64_t most = 0;
  for (const StreamingSchedule& schedule : schedules) {
    const std::vector<int> slot_groups = schedule.slot_groups();
    size_t segment = 0;
    uint64_t bytes = 0;
    for (const StreamedLinear& linear : schedule.linears) {
      for (const OpRows& of_segment : linear.segments) {
        if (segment == 0 || slot_groups[segment] != slot_groups[segment - 1])
          bytes = kStreamSlotBytes;
        for (const MatrixRows& rows : of_segment) bytes += rows_bytes(rows);
        most = std::max(most, bytes);
        ++segment;
      }
    }
  }
  return most;
}

int stream_stages(const Model& model, std::span<const Tier> homes,
                  std::span<const StreamingSchedule> schedules) {
  uint64_t most = 0;
  for (const StreamingSchedule& schedule : schedules) {
    bool has_others = false;
    uint64_t largest = 0;
    for (const StreamedLinear& linear : schedule.linears) {
      uint64_t on_disk = 0;
      for (const OpRows& segment : linear.segments) {
        for (const MatrixRows& rows : segment) {
          const BoundWeight& weight = model.weights[rows.weight];
          const int64_t bytes = rows.count * row_bytes_of(weight);
          if (homes[rows.weight] == Tier::kDisk)
            on_disk += static_cast<uint64_t>(bytes);
          else
            has_others = true;
        }
      }
      largest = std::max(largest, on_disk);
    }
    if (has_others) most = std::max(most, largest);
  }
  most = std::min(most, kMostReadAheadBytes);
  return kStreamStages + static_cast<int>((most + kStreamReadBytes - 1) / kStreamReadBytes);
}

std::vector<CpuRows> cpu_rows(std::span<const StreamingSchedule* const> schedules,
                              const std::vector<CpuLinearShare>& shares, int64_t most_tokens) {
  SPW_ASSERT(schedules.size() == shares.size() + 1);
  std::vector<CpuRows> all;
  for (size_t i = 0; i < shares.size(); ++i) {
    CpuRows of{.tokens = std::min<int64_t>(shares[i].tokens, most_tokens)};
    for (const StreamedLinear& linear : schedules[i]->linears) {
      int64_t rows = 0;
      for (const MatrixRows& some : linear.on_cpu) rows += some.count;
      of.rows = std::max(of.rows, rows);
    }
    if (of.rows > 0) all.push_back(of);
  }
  return all;
}

int slot_count(SlotContent content, std::span<const StreamingSchedule> schedules) {
  int most = 0;
  for (const StreamingSchedule& schedule : schedules) {
    const std::vector<int> slot_groups = schedule.slot_groups();
    if (!slot_groups.empty()) most = std::max(most, slot_groups.back() + 1);
  }
  return std::min(content == SlotContent::kLayers ? kLayerSlots : kSegmentSlots, most + 1);
}

}  // namespace spillway
