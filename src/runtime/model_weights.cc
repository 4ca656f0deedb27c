// SPDX-License-Identifier: Apache-2.0
#include "runtime/model_weights.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <utility>

#include "base/checked_math.h"
#include "base/error.h"
#include "base/thread_pool.h"
#include "runtime/load_compressed.h"
#include "tensor/packed_layout.h"
#include "tensor/random_fill.h"

namespace spillway {
namespace {

constexpr uint64_t kArenaAlignment = 64;

uint64_t arena_bytes(int64_t bytes) {
  return try_align_up(static_cast<uint64_t>(bytes), kArenaAlignment).value();
}

bool is_norm_scale(WeightRole role) {
  return role == WeightRole::kAttentionNorm || role == WeightRole::kMlpNorm ||
         role == WeightRole::kFinalNorm;
}

// Fills weights of a size in the GBs at the speed of memory: one pattern per type and spread,
// copied by all threads.
class DummyFiller {
 public:
  void fill(const BoundWeight& weight, std::byte* data, uint64_t shift) {
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

 private:
  static constexpr int64_t kGroupRows = 16;

  // Keeps activations at the same scale from layer to layer: norms multiply by one, biases are
  // small.
  const RandomPattern& pattern(const BoundWeight& weight) {
    const int64_t fan_in = weight.slot.is_vector() ? 1225 : weight.slot.cols;  // a bias of 0.02
    const auto key = std::pair(weight.dtype, fan_in);
    auto it = patterns_.find(key);
    if (it == patterns_.end()) {
      const auto deviation = static_cast<float>(0.7 / std::sqrt(static_cast<double>(fan_in)));
      it = patterns_.try_emplace(key, weight.dtype, patterns_.size() + 1, deviation).first;
    }
    return it->second;
  }

  ThreadPool pool_;
  std::map<std::pair<DType, int64_t>, RandomPattern> patterns_;
};

}  // namespace

WeightView& ModelWeights::view(const WeightSlot& slot) {
  const auto layer = [&]() -> LayerWeights& {
    if (layers.size() <= static_cast<size_t>(slot.layer))
      layers.resize(static_cast<size_t>(slot.layer) + 1);
    return layers[static_cast<size_t>(slot.layer)];
  };
  switch (slot.role) {
    case WeightRole::kTokenEmbedding:
      return token_embedding;
    case WeightRole::kPositionEmbedding:
      return position_embedding;
    case WeightRole::kProjectIn:
      return project_in;
    case WeightRole::kProjectOut:
      return project_out;
    case WeightRole::kFinalNorm:
      return final_norm.weight;
    case WeightRole::kFinalNormBias:
      return final_norm.bias;
    case WeightRole::kHead:
      return head;
    case WeightRole::kAttentionNorm:
      return layer().attention_norm.weight;
    case WeightRole::kAttentionNormBias:
      return layer().attention_norm.bias;
    case WeightRole::kQuery:
      return layer().query.weight;
    case WeightRole::kQueryBias:
      return layer().query.bias;
    case WeightRole::kKey:
      return layer().key.weight;
    case WeightRole::kKeyBias:
      return layer().key.bias;
    case WeightRole::kValue:
      return layer().value.weight;
    case WeightRole::kValueBias:
      return layer().value.bias;
    case WeightRole::kAttentionOut:
      return layer().attention_out.weight;
    case WeightRole::kAttentionOutBias:
      return layer().attention_out.bias;
    case WeightRole::kMlpNorm:
      return layer().mlp_norm.weight;
    case WeightRole::kMlpNormBias:
      return layer().mlp_norm.bias;
    case WeightRole::kGate:
      return layer().gate.weight;
    case WeightRole::kGateBias:
      return layer().gate.bias;
    case WeightRole::kUp:
      return layer().up.weight;
    case WeightRole::kUpBias:
      return layer().up.bias;
    case WeightRole::kDown:
      return layer().down.weight;
    case WeightRole::kDownBias:
      return layer().down.bias;
  }
  fail(ErrorCode::kInternal, "internal error: unknown weight role {}", static_cast<int>(slot.role));
}

void ModelWeights::tie_head() {
  if (head.empty()) head = token_embedding;
}

ModelWeights::ModelWeights(Device& device, const Model& model,
                           std::span<const std::filesystem::path> paths,
                           const WeightLoadOptions& options) {
  std::vector<Extent> extents;
  std::vector<size_t> resident_index(model.weights.size());
  uint64_t kept_bytes = 0, all_bytes = 0;
  for (size_t i = 0; i < model.weights.size(); ++i) {
    const BoundWeight& weight = model.weights[i];
    all_bytes += weight.extent.value().bytes;
    if (weight.loaded_from) continue;
    resident_index[i] = extents.size();
    extents.push_back(*weight.extent);
    kept_bytes += weight.extent->bytes;
  }
  // What is compressed comes after the rest; people see one progress.
  WeightLoadOptions kept = options, compressed = options;
  if (options.progress) {
    kept.progress = [&](uint64_t done, uint64_t) { options.progress(done, all_bytes); };
    compressed.progress = [&](uint64_t done, uint64_t) {
      options.progress(kept_bytes + done, all_bytes);
    };
  }
  resident_.emplace_back(device, paths, extents, kept);
  for (size_t i = 0; i < model.weights.size(); ++i) {
    const BoundWeight& weight = model.weights[i];
    if (weight.loaded_from) continue;
    view(weight.slot) = {weight.dtype, weight.slot.rows, weight.slot.cols,
                         resident_.front().data(resident_index[i])};
  }
  pack(device, model, resident_index, options);
  compress(device, model, paths, compressed);
  tie_head();
}

void ModelWeights::compress(Device& device, const Model& model,
                            std::span<const std::filesystem::path> paths,
                            const WeightLoadOptions& options) {
  uint64_t total = 0;
  for (const BoundWeight& weight : model.weights) {
    if (weight.loaded_from) total += arena_bytes(weight.bytes());
  }
  if (total == 0) return;
  compressed_ = device.allocate(total, MemoryTag::kWeights);
  std::vector<CompressedWeight> targets;
  std::byte* to = compressed_.data();
  for (const BoundWeight& weight : model.weights) {
    if (!weight.loaded_from) continue;
    const auto& [role, layer, rows, cols] = weight.slot;
    const WeightLayout layout = device.preferred_layout(weight.dtype, rows, cols);
    view(weight.slot) = {weight.dtype, rows, cols, to, layout};
    targets.push_back({&weight, to, layout});
    to += arena_bytes(weight.bytes());
  }
  load_compressed(device, paths, targets, options);
}

void ModelWeights::pack(Device& device, const Model& model, std::span<const size_t> resident_index,
                        const WeightLoadOptions& options) {
  std::vector<size_t> packed;
  uint64_t copied_bytes = 0;
  for (size_t i = 0; i < model.weights.size(); ++i) {
    const WeightSlot& slot = model.weights[i].slot;
    const WeightView& w = view(slot);
    if (w.empty() || !model.is_multiplied(slot) ||
        device.preferred_layout(w.dtype, w.rows, w.cols) != WeightLayout::kGroups16) {
      continue;
    }
    packed.push_back(i);
    copied_bytes += arena_bytes(w.bytes());
  }
  if (packed.empty()) return;
  const bool copy = !resident_.empty() &&
                    resident_.front().try_writable(resident_index[packed.front()]) == nullptr;
  if (copy) arena_ = device.allocate(copied_bytes, MemoryTag::kWeights);
  ThreadPool pool(device.info().threads);
  uint64_t offset = 0;
  for (const size_t i : packed) {
    SPW_CHECK(options.cancel == nullptr || !options.cancel->load(), kCancelled,
              "loading was stopped");
    WeightView& w = view(model.weights[i].slot);
    // Dummy weights are in the arena already.
    std::byte* to = resident_.empty() ? arena_.data() + (w.data - arena_.data())
                    : copy            ? arena_.data() + offset
                                      : resident_.front().try_writable(resident_index[i]);
    const int64_t groups = w.rows / kGroupRows, group_bytes = kGroupRows * w.row_bytes();
    pool.parallel_for(groups, 1, [&](int64_t begin, int64_t end, int) {
      pack_groups(w.dtype, w.data + begin * group_bytes, to + begin * group_bytes, end - begin,
                  w.cols);
    });
    if (copy) {
      const int64_t done = groups * group_bytes;
      std::memcpy(to + done, w.data + done, static_cast<size_t>(w.bytes() - done));
      resident_.front().drop(resident_index[i]);
      offset += arena_bytes(w.bytes());
    }
    w.data = to;
    w.layout = WeightLayout::kGroups16;
  }
}

ModelWeights ModelWeights::dummy(Device& device, const Model& model,
                                 const WeightLoadOptions& options) {
  uint64_t total = 0;
  for (const BoundWeight& weight : model.weights) {
    total += arena_bytes(weight.bytes());
  }
  ModelWeights weights;
  weights.arena_ = device.allocate(total, MemoryTag::kWeights);
  DummyFiller filler;
  uint64_t done = 0;
  for (const BoundWeight& weight : model.weights) {
    SPW_CHECK(options.cancel == nullptr || !options.cancel->load(), kCancelled,
              "loading was stopped");
    std::byte* const data = weights.arena_.data() + done;
    filler.fill(weight, data, done / kArenaAlignment);
    weights.view(weight.slot) = {weight.dtype, weight.slot.rows, weight.slot.cols, data};
    done += arena_bytes(weight.bytes());
    if (options.progress) options.progress(done, total);
  }
  weights.pack(device, model, {}, options);
  weights.tie_head();
  return weights;
}

}  // namespace spillway
