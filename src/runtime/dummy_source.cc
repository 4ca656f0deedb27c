// SPDX-License-Identifier: Apache-2.0
#include "runtime/dummy_source.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "plan/weight_homes.h"
#include "tensor/packed_layout.h"

namespace spillway {
// Seeds and shifts depend on the model alone, so that the values do not depend on which weights are
// made first, or at all.
DummySource::DummySource(const Model& model) : model_(model) {
  uint64_t before = 0;
  for (const BoundWeight& weight : model.weights) {
    shifts_.push_back(before / kWeightAlignment);
    before += aligned_weight_bytes(weight.bytes());
    if (!weight.slot.is_norm_scale()) seeds_.try_emplace(key_of(weight), seeds_.size() + 1);
  }
}

uint64_t DummySource::bytes_to_make(const BoundWeight& weight) const {
  return aligned_weight_bytes(weight.bytes());
}

void DummySource::make(Device& device, std::span<const WeightTarget> targets,
                       const WeightLoadOptions& options) {
  std::vector<std::byte> staging;  // holds a weight if the host cannot write to the device's memory
  uint64_t done = 0, total = 0;
  for (const WeightTarget& target : targets) total += bytes_to_make(*target.weight);
  for (const WeightTarget& target : targets) {
    SPW_CHECK(options.cancel == nullptr || !options.cancel->load(), kCancelled,
              "loading was stopped");
    const BoundWeight& weight = *target.weight;
    if (!device.host_visible()) staging.resize(static_cast<size_t>(weight.bytes()));
    std::byte* const data = device.host_visible() ? target.to : staging.data();
    fill(weight, data);
    if (target.layout == WeightLayout::kGroups16) pack(weight, data);
    if (data != target.to) device.copy_to_device(target.to, data, staging.size());
    done += bytes_to_make(weight);
    if (options.progress) options.progress(done, total);
  }
}

void DummySource::fill(const BoundWeight& weight, std::byte* data) {
  const int64_t count = weight.slot.rows * weight.slot.cols;
  if (weight.slot.is_norm_scale()) {  // norms multiply by one
    SPW_ASSERT(weight.dtype == DType::kF32);
    std::fill_n(reinterpret_cast<float*>(data), count, 1.0F);
    return;
  }
  const RandomPattern& random = pattern(weight);
  const uint64_t shift = shifts_[static_cast<size_t>(&weight - model_.weights.data())];
  const int64_t row = row_bytes(weight.dtype, weight.slot.cols);
  // Group by group, so that the bytes do not depend on how many threads share the work.
  pool_.parallel_for(weight.slot.rows, kGroupRows, [&](int64_t begin, int64_t end, int) {
    for (int64_t first = begin; first < end; first += kGroupRows) {
      const int64_t rows = std::min(kGroupRows, end - first);
      random.fill(data + first * row, rows * weight.slot.cols,
                  shift + static_cast<uint64_t>(first));
    }
  });
}

void DummySource::pack(const BoundWeight& weight, std::byte* data) {
  const int64_t cols = weight.slot.cols, bytes = kGroupRows * row_bytes(weight.dtype, cols);
  pool_.parallel_for(weight.slot.rows / kGroupRows, 1, [&](int64_t begin, int64_t end, int) {
    std::byte* const groups = data + begin * bytes;
    pack_groups(weight.dtype, groups, groups, end - begin, cols);
  });
}

DummySource::PatternKey DummySource::key_of(const BoundWeight& weight) {
  // 1225 columns give a bias a standard deviation of 0.02.
  return {weight.dtype, weight.slot.is_vector() ? 1225 : weight.slot.cols};
}

const RandomPattern& DummySource::pattern(const BoundWeight& weight) {
  const PatternKey key = key_of(weight);
  auto it = patterns_.find(key);
  if (it == patterns_.end()) {
    const auto deviation = static_cast<float>(0.7 / std::sqrt(static_cast<double>(key.second)));
    it = patterns_.try_emplace(key, weight.dtype, seeds_.at(key), deviation).first;
  }
  return it->second;
}

}  // namespace spillway
