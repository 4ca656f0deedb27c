// SPDX-License-Identifier: Apache-2.0
#include "runtime/model_weights.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/byte_units.h"
#include "base/error.h"
#include "memory/piece_loop.h"
#include "runtime/dummy_filler.h"
#include "runtime/load_weights.h"
#include "runtime/weight_file_filler.h"
#include "runtime/weight_homes.h"

namespace spillway {
WeightView& weight_of(LayerWeights& layer, WeightRole role) {
  switch (role) {
    case WeightRole::kAttentionNorm:
      return layer.attention_norm.weight;
    case WeightRole::kAttentionNormBias:
      return layer.attention_norm.bias;
    case WeightRole::kQuery:
      return layer.query.weight;
    case WeightRole::kQueryBias:
      return layer.query.bias;
    case WeightRole::kKey:
      return layer.key.weight;
    case WeightRole::kKeyBias:
      return layer.key.bias;
    case WeightRole::kValue:
      return layer.value.weight;
    case WeightRole::kValueBias:
      return layer.value.bias;
    case WeightRole::kAttentionOut:
      return layer.attention_out.weight;
    case WeightRole::kAttentionOutBias:
      return layer.attention_out.bias;
    case WeightRole::kMlpNorm:
      return layer.mlp_norm.weight;
    case WeightRole::kMlpNormBias:
      return layer.mlp_norm.bias;
    case WeightRole::kGate:
      return layer.gate.weight;
    case WeightRole::kGateBias:
      return layer.gate.bias;
    case WeightRole::kUp:
      return layer.up.weight;
    case WeightRole::kUpBias:
      return layer.up.bias;
    case WeightRole::kDown:
      return layer.down.weight;
    case WeightRole::kDownBias:
      return layer.down.bias;
    default:
      fail(ErrorCode::kInternal, "internal error: weight role {} in a layer",
           static_cast<int>(role));
  }
}

WeightView& ModelWeights::view(const WeightSlot& slot) {
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
    default:
      if (layers.size() <= static_cast<size_t>(slot.layer))
        layers.resize(static_cast<size_t>(slot.layer) + 1);
      return weight_of(layers[static_cast<size_t>(slot.layer)], slot.role);
  }
}

void ModelWeights::tie_head() {
  if (head.empty()) head = token_embedding;
}

DType ModelWeights::matrix_type() const {
  if (layers.empty()) return token_embedding.dtype;
  if (!streamed.empty()) {
    for (const StreamedWeight& weight : streamed.front()) {
      if (weight.role == WeightRole::kQuery) return weight.view.dtype;
    }
  }
  return layers.front().query.weight.dtype;
}

void ModelWeights::for_layer_types(const std::function<void(DType)>& f) const {
  for (const LayerWeights& layer : layers) {
    for (const LinearWeights* linear : {&layer.query, &layer.key, &layer.value,
                                        &layer.attention_out, &layer.gate, &layer.up, &layer.down})
      if (!linear->weight.empty()) f(linear->weight.dtype);
  }
  for (const std::vector<StreamedWeight>& layer : streamed) {
    for (const StreamedWeight& weight : layer) f(weight.view.dtype);
  }
}

bool ModelWeights::only_16_bit() const {
  const auto fits = [](DType type) { return type == DType::kF16 || type == DType::kBF16; };
  bool all = true;
  for (const WeightView* w : {&head, &project_in, &project_out})
    all = all && (w->empty() || fits(w->dtype));
  for_layer_types([&](DType type) { all = all && fits(type); });
  return all;
}

std::optional<DType> ModelWeights::layer_type() const {
  std::optional<DType> one;
  bool all = true;
  for_layer_types([&](DType type) {
    all = all && type == one.value_or(type);
    one = type;
  });
  return all ? one : std::nullopt;
}

// Takes the host's memory, and says what is streamed.
WeightHomes ModelWeights::place(Device& device, const Model& model,
                                const WeightPlacement& placement) {
  Device& host = placement.host == nullptr ? device : *placement.host;
  WeightHomes homes;
  homes.tiers = homes_on(device, model, placement.shares);
  homes.supplied.resize(homes.tiers.size());
  homes_ = homes.tiers;
  const uint64_t on_disk =
      weight_bytes(model, homes.tiers).in_tier[static_cast<size_t>(Tier::kDisk)];
  SPW_CHECK(on_disk <= placement.disk_budget, kOutOfMemory,
            "weights on disk need {}, but --disk-memory is {}", format_bytes(on_disk),
            format_bytes(placement.disk_budget));
  for (const BoundWeight& weight : model.weights) {
    homes.targets.push_back({&weight, layout_on(device, model, weight), nullptr});
    (void)view(weight.slot);  // so that all layers are there
  }
  if (!homes.has(Tier::kHost) && !homes.has(Tier::kDisk)) return homes;
  streamed.resize(layers.size());
  host_memory_.resize(homes.tiers.size());
  for (size_t i = 0; i < homes.tiers.size(); ++i) {
    if (homes.tiers[i] == Tier::kDevice) continue;
    WeightTarget& target = homes.targets[i];
    const WeightSlot& slot = target.weight->slot;
    StreamedWeight weight{slot.role,
                          {target.weight->dtype, slot.rows, slot.cols, nullptr, target.layout}};
    if (homes.tiers[i] == Tier::kHost) {
      PinnedBuffer& memory = host_memory_[i];
      homes.supplied[i] = placement.kept != nullptr && placement.kept->has_memory(i);
      memory = homes.supplied[i]
                   ? placement.kept->take(i)
                   : PinnedBuffer(host, device, static_cast<size_t>(target.weight->bytes()),
                                  MemoryTag::kWeights);
      weight.host = target.to = memory.data();
      weight.pinned = memory.is_pinned();
    }
    streamed[static_cast<size_t>(slot.layer)].push_back(weight);
  }
  return homes;
}

// Takes the device's memory, and sets the views of what lives there.
void ModelWeights::place_on_device(Device& device, WeightHomes& homes) {
  uint64_t total = 0;
  for (const WeightTarget& target : homes.left(Tier::kDevice))
    total += aligned_weight_bytes(target.weight->bytes());
  arena_ = device.allocate(total, MemoryTag::kWeights);
  std::byte* next = arena_.data();
  for (size_t i = 0; i < homes.tiers.size(); ++i) {
    if (homes.tiers[i] != Tier::kDevice) continue;
    WeightTarget& target = homes.targets[i];
    const WeightSlot& slot = target.weight->slot;
    target.to = next;
    view(slot) = {target.weight->dtype, slot.rows, slot.cols, next, target.layout};
    next += aligned_weight_bytes(target.weight->bytes());
  }
}

StreamedWeight& ModelWeights::streamed_of(const WeightSlot& slot) {
  for (StreamedWeight& weight : streamed[static_cast<size_t>(slot.layer)]) {
    if (weight.role == slot.role) return weight;
  }
  fail(ErrorCode::kInternal, "internal error: a weight without a home");
}

namespace {

// Progress of several loads in a row as one.
class JoinedProgress {
 public:
  JoinedProgress(const WeightLoadOptions& options, uint64_t total)
      : options_(options), all_(options), total_(total) {
    if (options.progress) {
      all_.progress = [this](uint64_t done, uint64_t) {
        options_.progress(before_ + done, total_);
      };
    }
  }
  const WeightLoadOptions& options() const { return all_; }
  void add(uint64_t bytes) {
    before_ += bytes;
    if (options_.progress) options_.progress(before_, total_);
  }

 private:
  const WeightLoadOptions& options_;
  WeightLoadOptions all_;
  uint64_t before_ = 0, total_;
};

uint64_t file_bytes(std::span<const WeightTarget> targets) {
  uint64_t bytes = 0;
  for (const WeightTarget& target : targets) bytes += target.weight->extent.value().bytes;
  return bytes;
}

}  // namespace

ModelWeights::ModelWeights(Device& device, const Model& model,
                           std::span<const std::filesystem::path> paths,
                           const WeightLoadOptions& options, const WeightPlacement& placement) {
  Device& host = placement.host == nullptr ? device : *placement.host;
  WeightHomes homes = place(device, model, placement);
  // What a step can use as the model's file has it stays there.
  files.assign(paths.begin(), paths.end());
  std::vector<Extent> extents;
  size_t stay_in_files = 0;
  bool all_as_stored = device.host_visible() && !homes.has(Tier::kDisk);
  for (size_t i = 0; i < homes.tiers.size(); ++i) {
    const WeightTarget& target = homes.targets[i];
    if (homes.tiers[i] == Tier::kDevice) {
      extents.push_back(target.weight->extent.value());
      all_as_stored = all_as_stored && is_as_stored(*target.weight, target.layout);
    } else if (homes.tiers[i] == Tier::kDisk && is_as_stored(*target.weight, target.layout)) {
      streamed_of(target.weight->slot).extent = *target.weight->extent;
      homes.supplied[i] = true;
      ++stay_in_files;
    }
  }
  if (options.access == WeightAccess::kMapped && all_as_stored) {
    if (placement.kept != nullptr) *placement.kept = WeightStore(0);  // nothing of it is needed
    maps_ = MappedExtents(paths, extents);
    for (const Extent& extent : extents) mapped_bytes_ += extent.bytes;
    JoinedProgress progress(options, file_bytes(homes.targets));
    populate_all(maps_, extents, device.info().threads + kPiecesAhead, progress.options());
    progress.add(file_bytes(homes.targets));
    for (const WeightTarget& target : homes.targets) {
      const WeightSlot& slot = target.weight->slot;
      view(slot) = {target.weight->dtype, slot.rows, slot.cols,
                    maps_.bytes(*target.weight->extent).data(), target.layout};
    }
    counts_.made = static_cast<int>(extents.size());
    tie_head();
    return;
  }
  place_on_device(device, homes);
  take_kept(device, homes, placement);
  const std::vector<WeightTarget> on_device = homes.left(Tier::kDevice),
                                  on_host = homes.left(Tier::kHost);
  std::vector<WeightTarget> spilled = homes.left(Tier::kDisk);
  counts_.made = static_cast<int>(on_device.size() + on_host.size());
  counts_.kept = static_cast<int>(homes.targets.size() - stay_in_files - on_device.size() -
                                  on_host.size() - spilled.size());
  JoinedProgress progress(options,
                          file_bytes(on_device) + file_bytes(on_host) + file_bytes(spilled));
  if (!on_device.empty()) load_weights(device, host, paths, on_device, progress.options());
  progress.add(file_bytes(on_device));
  if (!on_host.empty()) load_weights(host, host, paths, on_host, progress.options());
  progress.add(file_bytes(on_host));
  if (!spilled.empty()) {
    SPW_ASSERT(placement.queue != nullptr);
    WeightFileFiller filler(spilled, placement.disk_dir, host, *placement.queue);
    WeightLoadOptions quiet = options;
    quiet.progress = nullptr;
    for (WeightTarget& target : spilled) {
      const auto number = static_cast<size_t>(target.weight - model.weights.data());
      StreamedWeight& weight = streamed_of(target.weight->slot);
      weight.extent = filler.add(*target.weight, [&](std::byte* to) {
        if (placement.kept != nullptr && placement.kept->try_copy(number, to)) {
          ++counts_.kept;
          return;
        }
        ++counts_.made;
        target.to = to;
        load_weights(host, host, paths, {&target, 1}, quiet);
      });
      weight.extent.file = static_cast<int32_t>(files.size());
      progress.add(target.weight->extent->bytes);
    }
    spilled_.push_back(filler.finish());
    files.push_back(spilled_.back()->path());
  }
  if (placement.kept != nullptr) *placement.kept = WeightStore();
  tie_head();
}

ModelWeights ModelWeights::dummy(Device& device, const Model& model,
                                 const WeightLoadOptions& options,
                                 const WeightPlacement& placement) {
  Device& host = placement.host == nullptr ? device : *placement.host;
  ModelWeights weights;
  WeightHomes homes = weights.place(device, model, placement);
  weights.place_on_device(device, homes);
  weights.take_kept(device, homes, placement);
  uint64_t total = 0, done = 0;
  for (const BoundWeight& weight : model.weights) total += aligned_weight_bytes(weight.bytes());
  DummyFiller filler;
  std::optional<WeightFileFiller> disk;
  if (const auto on_disk = homes.left(Tier::kDisk); !on_disk.empty()) {
    SPW_ASSERT(placement.queue != nullptr);
    disk.emplace(on_disk, placement.disk_dir, host, *placement.queue);
  }
  std::vector<std::byte> made;  // one weight, where the host cannot write to the device's memory
  // In the model's order, wherever they go: the values depend on it.
  for (size_t i = 0; i < model.weights.size(); ++i) {
    SPW_CHECK(options.cancel == nullptr || !options.cancel->load(), kCancelled,
              "loading was stopped");
    const BoundWeight& weight = model.weights[i];
    const WeightTarget& target = homes.targets[i];
    bool kept = homes.supplied[i];
    const auto make = [&](std::byte* to) {
      if (placement.kept != nullptr && placement.kept->try_copy(i, to)) {
        kept = true;
        return;
      }
      filler.fill(weight, to, done / kWeightAlignment);
      if (target.layout == WeightLayout::kGroups16) filler.pack(weight, to);
    };
    if (!homes.supplied[i]) {
      if (homes.tiers[i] == Tier::kDisk) {
        Extent& extent = weights.streamed_of(weight.slot).extent;
        extent = disk->add(weight, make);
        extent.file = static_cast<int32_t>(weights.files.size());
      } else if (homes.tiers[i] == Tier::kHost || device.host_visible()) {
        make(target.to);
      } else {
        made.resize(static_cast<size_t>(weight.bytes()));
        make(made.data());
        device.copy_to_device(target.to, made.data(), made.size());
      }
    }
    if (kept) filler.pass(weight);
    ++(kept ? weights.counts_.kept : weights.counts_.made);
    done += aligned_weight_bytes(weight.bytes());
    if (options.progress) options.progress(done, total);
  }
  if (disk) {
    weights.spilled_.push_back(disk->finish());
    weights.files.push_back(weights.spilled_.back()->path());
  }
  if (placement.kept != nullptr) *placement.kept = WeightStore();
  weights.tie_head();
  return weights;
}

}  // namespace spillway
