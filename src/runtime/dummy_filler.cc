// SPDX-License-Identifier: Apache-2.0
#include "runtime/dummy_filler.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "tensor/packed_layout.h"

namespace spillway {
namespace {

bool is_norm_scale(WeightRole role) {
  return role == WeightRole::kAttentionNorm || role == WeightRole::kMlpNorm ||
         role == WeightRole::kFinalNorm;
}

}  // namespace

void DummyFiller::fill(const BoundWeight& weight, std::byte* data, uint64_t shift) {
  const int64_t count = weight.slot.rows * weight.slot.cols;
  if (is_norm_scale(weight.slot.role)) {
    SPW_ASSERT(weight.dtype == DType::kF32);
    std::fill_n(reinterpret_cast<float*>(data), count, 1.0F);
    return;
  }
  const RandomPattern& random = pattern(weight);
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

// Patterns are numbered as weights come by.
void DummyFiller::pass(const BoundWeight& weight) {
  if (!is_norm_scale(weight.slot.role)) (void)pattern(weight);
}

void DummyFiller::pack(const BoundWeight& weight, std::byte* data) {
  const int64_t cols = weight.slot.cols, bytes = kGroupRows * row_bytes(weight.dtype, cols);
  pool_.parallel_for(weight.slot.rows / kGroupRows, 1, [&](int64_t begin, int64_t end, int) {
    std::byte* const groups = data + begin * bytes;
    pack_groups(weight.dtype, groups, groups, end - begin, cols);
  });
}

const RandomPattern& DummyFiller::pattern(const BoundWeight& weight) {
  const int64_t fan_in = weight.slot.is_vector() ? 1225 : weight.slot.cols;  // a bias of 0.02
  const auto key = std::pair(weight.dtype, fan_in);
  auto it = patterns_.find(key);
  if (it == patterns_.end()) {
    const auto deviation = static_cast<float>(0.7 / std::sqrt(static_cast<double>(fan_in)));
    it = patterns_.try_emplace(key, weight.dtype, patterns_.size() + 1, deviation).first;
  }
  return it->second;
}

}  // namespace spillway
