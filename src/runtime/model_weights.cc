// SPDX-License-Identifier: Apache-2.0
#include "runtime/model_weights.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <optional>
#include <utility>

#include "base/byte_units.h"
#include "base/error.h"
#include "base/thread_pool.h"
#include "memory/piece_loop.h"
#include "runtime/load_weights.h"
#include "storage/extent_reader.h"
#include "storage/weight_file.h"
#include "tensor/packed_layout.h"
#include "tensor/random_fill.h"

namespace spillway {
namespace {

bool is_norm_scale(WeightRole role) {
  return role == WeightRole::kAttentionNorm || role == WeightRole::kMlpNorm ||
         role == WeightRole::kFinalNorm;
}

WeightLayout layout_on(const Device& device, const Model& model, const BoundWeight& weight) {
  const WeightSlot& slot = weight.slot;
  return model.is_multiplied(slot) ? device.preferred_layout(weight.dtype, slot.rows, slot.cols)
                                   : WeightLayout::kRows;
}

std::vector<Tier> homes_on(const Device& device, const Model& model, TierShares shares) {
  if (device.host_visible()) shares.device += std::exchange(shares.host, 0);  // one memory
  return weight_homes(model, shares);
}

// A weight, the layout it should have: whether a step can use it as the model's file has it.
bool is_as_stored(const BoundWeight& weight, WeightLayout layout) {
  return weight.extent && !weight.loaded_from && layout == WeightLayout::kRows;
}

// Memory for writing weights to disk.
constexpr size_t kWriteBytes = size_t{16} << 20;

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

WeightNeeds weight_needs(const Device& device, const Model& model, const TierShares& shares,
                         const WeightLoadOptions& options) {
  const std::vector<Tier> homes = homes_on(device, model, shares);
  const WeightBytes bytes = weight_bytes(model, homes);
  WeightNeeds needs;
  needs.device = bytes.in_tier[static_cast<size_t>(Tier::kDevice)];
  needs.host = bytes.in_tier[static_cast<size_t>(Tier::kHost)];
  needs.disk = bytes.in_tier[static_cast<size_t>(Tier::kDisk)];
  needs.from_disk = needs.disk > 0;
  bool mapped = device.host_visible() && options.access == WeightAccess::kMapped && needs.disk == 0;
  std::map<int, std::vector<StreamedWeight>> streamed;
  uint64_t largest_written = 0;
  for (size_t i = 0; i < homes.size(); ++i) {
    const BoundWeight& weight = model.weights[i];
    const WeightSlot& slot = weight.slot;
    const WeightLayout layout = layout_on(device, model, weight);
    const bool stays = is_as_stored(weight, layout);
    if (homes[i] == Tier::kDevice) {
      mapped = mapped && stays;
      continue;
    }
    // As it will be streamed: all that counts is how many bytes, and where in a block they begin.
    static constexpr std::byte kInMemory{};
    const auto size = static_cast<uint64_t>(weight.bytes());
    streamed[slot.layer].push_back({slot.role,
                                    {weight.dtype, slot.rows, slot.cols, nullptr, layout},
                                    homes[i] == Tier::kHost ? &kInMemory : nullptr,
                                    stays ? *weight.extent : Extent{0, 0, size}});
    if (homes[i] == Tier::kDisk && !stays) largest_written = std::max(largest_written, size);
  }
  if (mapped) needs.device = 0;  // pages of the page cache, which are nobody's
  needs.streamed_layers = static_cast<int>(streamed.size());
  for (const auto& [layer, weights] : streamed)
    needs.slot = std::max(needs.slot, streamed_bytes(weights));
  if (largest_written > 0) needs.loading_host = kWriteBytes + kDirectAlignment + largest_written;
  return needs;
}

uint64_t streamed_bytes(std::span<const StreamedWeight> weights) {
  uint64_t bytes = kDirectAlignment;
  for (const StreamedWeight& weight : weights) {
    bytes += weight.host != nullptr ? aligned_weight_bytes(weight.view.bytes())
                                    : ExtentReader::buffer_bytes({&weight.extent, 1});
  }
  return bytes;
}

// Every weight once, by home: targets have their layout, and their place where that is memory.
struct ModelWeights::Homes {
  std::vector<WeightTarget> on_device, on_host, on_disk;
};

// Takes the memory and the disk, and sets every view but those of mapped weights.
ModelWeights::Homes ModelWeights::place(Device& device, const Model& model,
                                        const WeightPlacement& placement) {
  Device& host = placement.host == nullptr ? device : *placement.host;
  const std::vector<Tier> tiers = homes_on(device, model, placement.shares);
  const WeightBytes bytes = weight_bytes(model, tiers);
  const uint64_t on_disk = bytes.in_tier[static_cast<size_t>(Tier::kDisk)];
  SPW_CHECK(on_disk <= placement.disk_budget, kOutOfMemory,
            "weights on disk need {}, but --disk-memory is {}", format_bytes(on_disk),
            format_bytes(placement.disk_budget));
  Homes homes;
  for (size_t i = 0; i < tiers.size(); ++i) {
    const BoundWeight& weight = model.weights[i];
    const WeightTarget target{&weight, layout_on(device, model, weight), nullptr};
    (tiers[i] == Tier::kDevice ? homes.on_device
     : tiers[i] == Tier::kHost ? homes.on_host
                               : homes.on_disk)
        .push_back(target);
    (void)view(weight.slot);  // so that all layers are there
  }
  if (homes.on_host.empty() && homes.on_disk.empty()) return homes;
  streamed.resize(layers.size());
  const auto stream = [&](const WeightTarget& target, const std::byte* at) {
    const WeightSlot& slot = target.weight->slot;
    streamed[static_cast<size_t>(slot.layer)].push_back(
        {slot.role, {target.weight->dtype, slot.rows, slot.cols, nullptr, target.layout}, at, {}});
  };
  if (!homes.on_host.empty()) {
    host_arena_ = PinnedBuffer(host, device, bytes.in_tier[static_cast<size_t>(Tier::kHost)],
                               MemoryTag::kWeights);
    std::byte* to = host_arena_.data();
    for (WeightTarget& target : homes.on_host) {
      target.to = to;
      stream(target, to);
      to += aligned_weight_bytes(target.weight->bytes());
    }
  }
  for (const WeightTarget& target : homes.on_disk) stream(target, nullptr);
  return homes;
}

namespace {

// Weights that go on to a file, made one at a time in host memory.
class FileFiller {
 public:
  FileFiller(std::span<const WeightTarget> targets, const std::filesystem::path& folder,
             Device& host)
      : host_(host),
        staging_(host.allocate(kWriteBytes + kDirectAlignment, MemoryTag::kStaging)),
        writer_(queue_,
                {.dir = folder, .bytes = file_bytes(targets), .staging = aligned_staging()}) {}

  // `make` fills the memory it is given.
  Extent add(const BoundWeight& weight, const std::function<void(std::byte*)>& make) {
    const auto bytes = static_cast<size_t>(weight.bytes());
    if (made_.bytes() < bytes) {
      made_ = Buffer();
      made_ = host_.allocate(bytes, MemoryTag::kStaging);
    }
    make(made_.data());
    return writer_.append({made_.data(), bytes});
  }
  std::unique_ptr<TemporaryFile> finish() { return writer_.finish(); }

 private:
  static uint64_t file_bytes(std::span<const WeightTarget> targets) {
    std::vector<uint64_t> sizes;
    for (const WeightTarget& target : targets)
      sizes.push_back(static_cast<uint64_t>(target.weight->bytes()));
    return WeightFileWriter::bytes_for(sizes);
  }

  std::span<std::byte> aligned_staging() const {
    const auto address = reinterpret_cast<uintptr_t>(staging_.data());
    return {staging_.data() + (0 - address) % kDirectAlignment, kWriteBytes};
  }

  Device& host_;
  Buffer made_, staging_;
  IoQueue queue_;
  WeightFileWriter writer_;
};

StreamedWeight& streamed_of(ModelWeights& weights, const WeightSlot& slot) {
  for (StreamedWeight& weight : weights.streamed[static_cast<size_t>(slot.layer)]) {
    if (weight.role == slot.role) return weight;
  }
  fail(ErrorCode::kInternal, "internal error: a weight without a home");
}

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

bool is_as_stored(const WeightTarget& target) {
  return is_as_stored(*target.weight, target.layout);
}

}  // namespace

ModelWeights::ModelWeights(Device& device, const Model& model,
                           std::span<const std::filesystem::path> paths,
                           const WeightLoadOptions& options, const WeightPlacement& placement) {
  Device& host = placement.host == nullptr ? device : *placement.host;
  Homes homes = place(device, model, placement);
  JoinedProgress progress(
      options, file_bytes(homes.on_device) + file_bytes(homes.on_host) + file_bytes(homes.on_disk));
  const auto set_view = [&](const WeightTarget& target, const std::byte* data) {
    const WeightSlot& slot = target.weight->slot;
    view(slot) = {target.weight->dtype, slot.rows, slot.cols, data, target.layout};
  };
  std::vector<Extent> extents;
  uint64_t total = 0;
  bool all_as_stored = device.host_visible();
  for (const WeightTarget& target : homes.on_device) {
    extents.push_back(target.weight->extent.value());
    total += aligned_weight_bytes(target.weight->bytes());
    all_as_stored = all_as_stored && is_as_stored(target);
  }
  if (options.access == WeightAccess::kMapped && all_as_stored && homes.on_disk.empty()) {
    maps_ = MappedExtents(paths, extents);
    populate_all(maps_, extents, device.info().threads + kPiecesAhead, progress.options());
    for (const WeightTarget& target : homes.on_device)
      set_view(target, maps_.bytes(*target.weight->extent).data());
  } else {
    arena_ = device.allocate(total, MemoryTag::kWeights);
    std::byte* to = arena_.data();
    for (WeightTarget& target : homes.on_device) {
      target.to = to;
      set_view(target, to);
      to += aligned_weight_bytes(target.weight->bytes());
    }
    load_weights(device, host, paths, homes.on_device, progress.options());
  }
  progress.add(file_bytes(homes.on_device));
  if (!homes.on_host.empty()) load_weights(host, host, paths, homes.on_host, progress.options());
  progress.add(file_bytes(homes.on_host));

  // What a step can use as the model's file has it stays there.
  files.assign(paths.begin(), paths.end());
  std::vector<WeightTarget> spilled;
  for (const WeightTarget& target : homes.on_disk) {
    if (is_as_stored(target)) {
      streamed_of(*this, target.weight->slot).extent = *target.weight->extent;
    } else {
      spilled.push_back(target);
    }
  }
  if (!spilled.empty()) {
    FileFiller filler(spilled, placement.disk_dir, host);
    WeightLoadOptions quiet = options;
    quiet.progress = nullptr;
    for (WeightTarget& target : spilled) {
      StreamedWeight& weight = streamed_of(*this, target.weight->slot);
      weight.extent = filler.add(*target.weight, [&](std::byte* to) {
        target.to = to;
        load_weights(host, host, paths, {&target, 1}, quiet);
      });
      weight.extent.file = static_cast<int32_t>(files.size());
      progress.add(target.weight->extent->bytes);
    }
    spilled_ = filler.finish();
    files.push_back(spilled_->path());
  }
  tie_head();
}

ModelWeights ModelWeights::dummy(Device& device, const Model& model,
                                 const WeightLoadOptions& options,
                                 const WeightPlacement& placement) {
  Device& host = placement.host == nullptr ? device : *placement.host;
  ModelWeights weights;
  Homes homes = weights.place(device, model, placement);
  uint64_t on_device = 0, total = 0, done = 0;
  for (const BoundWeight& weight : model.weights) total += aligned_weight_bytes(weight.bytes());
  for (const WeightTarget& target : homes.on_device)
    on_device += aligned_weight_bytes(target.weight->bytes());
  weights.arena_ = device.allocate(on_device, MemoryTag::kWeights);
  DummyFiller filler;
  std::optional<FileFiller> disk;
  if (!homes.on_disk.empty()) disk.emplace(homes.on_disk, placement.disk_dir, host);
  std::vector<std::byte> made;  // one weight, where the host cannot write to the device's memory
  std::byte* next = weights.arena_.data();
  const auto find = [](std::vector<WeightTarget>& targets, const BoundWeight& weight) {
    const auto it = std::find_if(targets.begin(), targets.end(),
                                 [&](const WeightTarget& t) { return t.weight == &weight; });
    return it == targets.end() ? nullptr : &*it;
  };
  // In the model's order, wherever they go: the values depend on it.
  for (const BoundWeight& weight : model.weights) {
    SPW_CHECK(options.cancel == nullptr || !options.cancel->load(), kCancelled,
              "loading was stopped");
    const WeightLayout layout = layout_on(device, model, weight);
    const auto make = [&](std::byte* to) {
      filler.fill(weight, to, done / kWeightAlignment);
      if (layout == WeightLayout::kGroups16) filler.pack(weight, to);
    };
    if (find(homes.on_disk, weight) != nullptr) {
      streamed_of(weights, weight.slot).extent = disk->add(weight, make);
    } else if (const WeightTarget* target = find(homes.on_host, weight)) {
      make(target->to);
    } else {
      if (device.host_visible()) {
        make(next);
      } else {
        made.resize(static_cast<size_t>(weight.bytes()));
        make(made.data());
        device.copy_to_device(next, made.data(), made.size());
      }
      weights.view(weight.slot) = {weight.dtype, weight.slot.rows, weight.slot.cols, next, layout};
      next += aligned_weight_bytes(weight.bytes());
    }
    done += aligned_weight_bytes(weight.bytes());
    if (options.progress) options.progress(done, total);
  }
  if (disk) {
    weights.spilled_ = disk->finish();
    weights.files = {weights.spilled_->path()};
  }
  weights.tie_head();
  return weights;
}

}  // namespace spillway
