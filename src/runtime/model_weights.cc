// SPDX-License-Identifier: Apache-2.0
#include "runtime/model_weights.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "base/checked_math.h"
#include "base/error.h"
#include "base/thread_pool.h"
#include "memory/piece_loop.h"
#include "runtime/load_weights.h"
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

WeightLayout layout_on(const Device& device, const Model& model, const BoundWeight& weight) {
  const WeightSlot& slot = weight.slot;
  return model.is_multiplied(slot) ? device.preferred_layout(weight.dtype, slot.rows, slot.cols)
                                   : WeightLayout::kRows;
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

  void pack(const BoundWeight& weight, std::byte* data) {
    const int64_t cols = weight.slot.cols, bytes = kGroupRows * row_bytes(weight.dtype, cols);
    pool_.parallel_for(weight.slot.rows / kGroupRows, 1, [&](int64_t begin, int64_t end, int) {
      std::byte* const groups = data + begin * bytes;
      pack_groups(weight.dtype, groups, groups, end - begin, cols);
    });
  }

 private:
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
  std::vector<WeightTarget> targets;
  std::vector<Extent> extents;
  uint64_t total = 0;
  bool all_as_stored = device.host_visible();
  for (const BoundWeight& weight : model.weights) {
    const WeightLayout layout = layout_on(device, model, weight);
    targets.push_back({&weight, layout, nullptr});
    extents.push_back(weight.extent.value());
    total += arena_bytes(weight.bytes());
    if (weight.loaded_from || layout != WeightLayout::kRows) all_as_stored = false;
  }
  const auto set_view = [&](const WeightTarget& target, const std::byte* data) {
    const WeightSlot& slot = target.weight->slot;
    view(slot) = {target.weight->dtype, slot.rows, slot.cols, data, target.layout};
  };
  if (options.access == WeightAccess::kMapped && all_as_stored) {
    maps_ = MappedExtents(paths, extents);
    populate_all(maps_, extents, device.info().threads + kPiecesAhead, options);
    for (const WeightTarget& target : targets)
      set_view(target, maps_.bytes(*target.weight->extent).data());
  } else {
    arena_ = device.allocate(total, MemoryTag::kWeights);
    std::byte* to = arena_.data();
    for (WeightTarget& target : targets) {
      target.to = to;
      set_view(target, to);
      to += arena_bytes(target.weight->bytes());
    }
    load_weights(device, paths, targets, options);
  }
  tie_head();
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
  std::vector<std::byte> made;  // one weight, where the host cannot write to the device's memory
  uint64_t done = 0;
  for (const BoundWeight& weight : model.weights) {
    SPW_CHECK(options.cancel == nullptr || !options.cancel->load(), kCancelled,
              "loading was stopped");
    std::byte* const data = weights.arena_.data() + done;
    const WeightLayout layout = layout_on(device, model, weight);
    if (!device.host_visible()) made.resize(static_cast<size_t>(weight.bytes()));
    std::byte* const host = device.host_visible() ? data : made.data();
    filler.fill(weight, host, done / kArenaAlignment);
    if (layout == WeightLayout::kGroups16) filler.pack(weight, host);
    if (host != data) device.copy_to_device(data, host, made.size());
    weights.view(weight.slot) = {weight.dtype, weight.slot.rows, weight.slot.cols, data, layout};
    done += arena_bytes(weight.bytes());
    if (options.progress) options.progress(done, total);
  }
  weights.tie_head();
  return weights;
}

}  // namespace spillway
