// SPDX-License-Identifier: Apache-2.0
#include "runtime/weight_mover.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/byte_units.h"
#include "base/error.h"
#include "memory/piece_loop.h"
#include "plan/weight_homes.h"
#include "runtime/device_traits.h"
#include "runtime/dummy_source.h"
#include "runtime/file_source.h"
#include "runtime/weight_file_filler.h"
#include "storage/extent_reader.h"

namespace spillway {
namespace {

// Reads weights that were kept in files, one at a time.
class KeptReader {
 public:
  KeptReader(const KeptWeights& kept, Device& host, IoQueue* queue)
      : kept_(kept), host_(host), queue_(queue) {}

  // Returns false if there is no memory to read through: the weight is then made again.
  [[nodiscard]] bool try_begin() {
    if (reader_ != nullptr) return true;
    SPW_ASSERT(queue_ != nullptr);
    try {
      buffer_ = host_.allocate(kPieceBytes + 3 * kDirectAlignment, MemoryTag::kStaging);
      std::vector<std::filesystem::path> paths;
      for (const auto& file : kept_.files()) paths.push_back(file->path());
      reader_ = std::make_unique<ExtentReader>(*queue_, paths);
      return true;
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kOutOfMemory) throw;
      return false;
    }
  }

  // Reads the extent into memory of `device`, in pieces.
  void read(const Extent& extent, Device& device, std::byte* to) {
    for (uint64_t done = 0; done < extent.bytes; done += kPieceBytes) {
      const Extent piece{extent.file, extent.offset + done,
                         std::min(kPieceBytes, extent.bytes - done)};
      ExtentBatch batch =
          reader_->begin({&piece, 1}, aligned_part(buffer_.data(), buffer_.bytes()));
      batch.wait();
      device.copy_to_device(to + done, batch.bytes(0).data(), piece.bytes);
    }
  }

 private:
  static constexpr uint64_t kPieceBytes = uint64_t{16} << 20;

  const KeptWeights& kept_;
  Device& host_;
  Buffer buffer_;
  IoQueue* queue_;  // needed if something was kept in a file
  std::unique_ptr<ExtentReader> reader_;
};

// Reports the progress of several loads in a row as that of one.
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

// One call of load_weights(): each of its steps finds homes for weights, or brings bytes to homes.
class WeightLoad {
 public:
  WeightLoad(Device& device, const Model& model, WeightSource& source,
             const WeightLoadOptions& options, const WeightPlacement& placement, KeptWeights kept)
      : device_(device),
        host_(placement.host_beside(device)),
        model_(model),
        source_(source),
        options_(options),
        placement_(placement),
        kept_(std::move(kept)) {}

  ModelWeights run() {
    find_homes();
    take_host_memory();
    leave_in_files();
    if (!try_map()) {
      take_device_memory();
      take_kept();
      make_the_rest();
    }
    kept_ = KeptWeights();
    tie_head();
    return ModelWeights(std::move(views_), std::move(memory_), std::move(homes_), counts_);
  }

 private:
  void find_homes();
  void take_host_memory();
  void leave_on_host(const BoundWeight& weight, StreamedWeight streamed);
  void tie_head();
  void leave_in_files();
  bool try_map();
  void take_device_memory();
  void take_kept();
  void make_the_rest();
  void write_to_disk(std::vector<WeightTarget> targets, JoinedProgress& progress);
  bool try_copy_kept(const WeightTarget& target, std::byte* to);

  bool has(Tier tier) const { return std::ranges::count(homes_, tier) > 0; }
  size_t number_of(const WeightTarget& target) const {
    return static_cast<size_t>(target.weight - model_.weights.data());
  }
  // Returns the weights of a tier whose bytes are not there yet.
  std::vector<WeightTarget> left(Tier tier) const;
  uint64_t bytes_to_make(std::span<const WeightTarget> targets) const;

  Device& device_;
  Device& host_;
  const Model& model_;
  WeightSource& source_;
  const WeightLoadOptions& options_;
  const WeightPlacement& placement_;
  KeptWeights kept_;
  // By number in Model::weights: the tier, the address there, and whether its bytes are there.
  std::vector<Tier> homes_;
  std::vector<WeightTarget> targets_;
  std::vector<bool> there_;
  int left_in_files_ = 0;
  WeightViews views_;
  WeightMemory memory_;
  ModelWeights::Counts counts_;
};

std::vector<WeightTarget> WeightLoad::left(Tier tier) const {
  std::vector<WeightTarget> result;
  for (size_t i = 0; i < homes_.size(); ++i) {
    if (homes_[i] == tier && !there_[i]) result.push_back(targets_[i]);
  }
  return result;
}

uint64_t WeightLoad::bytes_to_make(std::span<const WeightTarget> targets) const {
  uint64_t bytes = 0;
  for (const WeightTarget& target : targets) bytes += source_.bytes_to_make(*target.weight);
  return bytes;
}

void WeightLoad::find_homes() {
  homes_ = placement_.homes_of(model_);
  there_.resize(homes_.size());
  const uint64_t on_disk = bytes_by_home(model_, homes_)[static_cast<size_t>(Tier::kDisk)];
  SPW_CHECK(on_disk <= placement_.disk_budget, kOutOfMemory,
            "weights on disk need {}, but --disk-memory is {}", format_bytes(on_disk),
            format_bytes(placement_.disk_budget));
  const DeviceTraits traits = traits_of(device_);
  for (const BoundWeight& weight : model_.weights) {
    targets_.push_back({&weight, weight_layout(traits, model_, weight), nullptr});
    (void)views_.view(weight.slot);  // makes entries for all layers
  }
  const auto files = source_.files();
  views_.files.assign(files.begin(), files.end());
}

// Allocates host memory for weights that live there, and lists the streamed weights. A weight that
// was kept in host memory and stays there is then done.
void WeightLoad::take_host_memory() {
  if (!has(Tier::kHost) && !has(Tier::kDisk)) return;
  views_.streamed.resize(views_.layers.size());
  memory_.host.resize(homes_.size());
  uint64_t pinned = 0;
  for (size_t i = 0; i < homes_.size(); ++i) {
    if (homes_[i] == Tier::kDevice) continue;
    WeightTarget& target = targets_[i];
    const WeightSlot& slot = target.weight->slot;
    StreamedWeight weight{
        slot.op, slot.matrix, {target.weight->dtype, slot.rows, slot.cols, nullptr, target.layout}};
    if (homes_[i] == Tier::kHost) {
      PinnedBuffer& memory = memory_.host[i];
      const auto bytes = static_cast<size_t>(target.weight->bytes());
      there_[i] = kept_.has_memory(i);
      memory = there_[i] ? kept_.take(i)
                         : PinnedBuffer(host_, device_, bytes, MemoryTag::kWeights,
                                        pinned + bytes <= placement_.most_pinned
                                            ? PinnedBuffer::Pin::kWherePossible
                                            : PinnedBuffer::Pin::kNever);
      if (memory.is_pinned()) pinned += bytes;
      weight.host = target.to = memory.data();
      weight.pinned = memory.is_pinned();
    }
    if (slot.in_layer()) {
      views_.streamed[static_cast<size_t>(slot.layer)].push_back(weight);
    } else {
      leave_on_host(*target.weight, weight);
    }
  }
}

// Lists an embedding or head in host memory.
void WeightLoad::leave_on_host(const BoundWeight& weight, StreamedWeight streamed) {
  WeightView view = streamed.view;
  view.data = streamed.host;
  if (weight.slot.is_table())
    (weight.slot.by_position ? views_.on_host.by_position : views_.on_host.by_token) = view;
  if (&weight == try_head_of(model_)) views_.streamed_head = streamed;
}

// A head that is the token embedding has the same bytes: its view is set to the embedding's.
void WeightLoad::tie_head() {
  if (!model_.spec.has_tied_head()) return;
  const int op = model_.spec.lowered->head.ops.back().op;
  views_.view({.layer = kHeadList, .op = op}) = views_.view(try_head_of(model_)->slot);
}

// Leaves weights on disk in the model's file, if a step can use them as they are there.
void WeightLoad::leave_in_files() {
  for (size_t i = 0; i < homes_.size(); ++i) {
    const WeightTarget& target = targets_[i];
    if (homes_[i] != Tier::kDisk || !has_rows_as_stored(*target.weight, target.layout)) continue;
    StreamedWeight& streamed = views_.streamed_of(target.weight->slot);
    streamed.extent = *target.weight->extent;
    streamed.groups = target.weight->groups;
    there_[i] = true;
    ++left_in_files_;
  }
}

// Maps the files if every weight is wanted as they have it, in memory that files can be mapped to.
bool WeightLoad::try_map() {
  if (options_.access != WeightAccess::kMapped || !device_.host_visible() || has(Tier::kDisk) ||
      !std::ranges::all_of(targets_, [](const WeightTarget& target) {
        return is_as_stored(*target.weight, target.layout);
      })) {
    return false;
  }
  kept_ = KeptWeights();  // nothing of it is needed
  std::vector<Extent> extents;
  for (const WeightTarget& target : targets_) extents.push_back(target.weight->extent.value());
  memory_.maps = MappedExtents(source_.files(), extents);
  for (const Extent& extent : extents) memory_.mapped_bytes += extent.bytes;
  JoinedProgress progress(options_, memory_.mapped_bytes);
  populate_all(memory_.maps, extents, device_.info().threads + kPiecesAhead, progress.options());
  progress.add(memory_.mapped_bytes);
  for (const WeightTarget& target : targets_) {
    const WeightSlot& slot = target.weight->slot;
    views_.view(slot) = {target.weight->dtype, slot.rows, slot.cols,
                         memory_.maps.bytes(*target.weight->extent).data(), target.layout};
  }
  counts_.made = static_cast<int>(extents.size());
  return true;
}

// Allocates device memory, and sets the views of the weights that live there.
void WeightLoad::take_device_memory() {
  uint64_t total = 0;
  for (const WeightTarget& target : left(Tier::kDevice))
    total += aligned_weight_bytes(target.weight->bytes());
  memory_.arena = device_.allocate(total, MemoryTag::kWeights);
  std::byte* next = memory_.arena.data();
  for (size_t i = 0; i < homes_.size(); ++i) {
    if (homes_[i] != Tier::kDevice) continue;
    WeightTarget& target = targets_[i];
    const WeightSlot& slot = target.weight->slot;
    target.to = next;
    views_.view(slot) = {target.weight->dtype, slot.rows, slot.cols, next, target.layout};
    next += aligned_weight_bytes(target.weight->bytes());
  }
}

// Brings weights that the previous plan left to where they live now. Weights that were in memory
// and go to disk are left in kept_, where write_to_disk() finds them.
void WeightLoad::take_kept() {
  if (kept_.empty()) return;
  uint64_t to_write = 0;
  for (size_t i = 0; i < homes_.size(); ++i) {
    if (homes_[i] == Tier::kDisk && !there_[i] && !kept_.try_extent(i))
      to_write += align_up(static_cast<uint64_t>(targets_[i].weight->bytes()));
  }
  // The disk budget does not hold both the old file and the new one.
  if (kept_.file_bytes() + to_write > placement_.disk_budget) kept_.forget_files();

  KeptReader reader(kept_, host_, placement_.queue);
  bool files_in_use = false;
  for (size_t i = 0; i < homes_.size(); ++i) {
    const WeightTarget& target = targets_[i];
    const std::optional<Extent> extent = kept_.try_extent(i);
    if (there_[i] || !(kept_.has_memory(i) || extent)) continue;
    if (homes_[i] == Tier::kDisk) {
      if (!extent) continue;
      Extent& there = views_.streamed_of(target.weight->slot).extent;
      there = *extent;
      there.file += static_cast<int32_t>(views_.files.size());
      files_in_use = true;
    } else if (kept_.has_memory(i)) {
      const auto bytes = static_cast<size_t>(target.weight->bytes());
      device_.copy_to_device(target.to, kept_.memory(i).data(), bytes);
    } else if (!reader.try_begin()) {
      continue;
    } else {
      reader.read(*extent, homes_[i] == Tier::kHost ? host_ : device_, target.to);
    }
    (void)kept_.take(i);
    there_[i] = true;
  }
  if (!files_in_use) return;
  for (const auto& file : kept_.files()) {
    memory_.spilled.push_back(file);
    views_.files.push_back(file->path());
  }
}

void WeightLoad::make_the_rest() {
  const std::vector<WeightTarget> on_device = left(Tier::kDevice), on_host = left(Tier::kHost);
  std::vector<WeightTarget> on_disk = left(Tier::kDisk);
  counts_.made = static_cast<int>(on_device.size() + on_host.size());
  counts_.kept = static_cast<int>(std::ranges::count(there_, true)) - left_in_files_;
  JoinedProgress progress(
      options_, bytes_to_make(on_device) + bytes_to_make(on_host) + bytes_to_make(on_disk));
  for (const auto& [where, targets] :
       {std::pair(&device_, &on_device), std::pair(&host_, &on_host)}) {
    if (!targets->empty()) source_.make(*where, *targets, progress.options());
    progress.add(bytes_to_make(*targets));
  }
  if (!on_disk.empty()) write_to_disk(std::move(on_disk), progress);
}

void WeightLoad::write_to_disk(std::vector<WeightTarget> targets, JoinedProgress& progress) {
  SPW_ASSERT(placement_.queue != nullptr);
  WeightFileFiller filler(targets, placement_.disk_dir, host_, *placement_.queue);
  WeightLoadOptions quiet = options_;
  quiet.progress = nullptr;
  for (WeightTarget& target : targets) {
    Extent& extent = views_.streamed_of(target.weight->slot).extent;
    extent = filler.add(*target.weight, [&](std::byte* to) {
      if (try_copy_kept(target, to)) {
        ++counts_.kept;
        return;
      }
      ++counts_.made;
      target.to = to;
      source_.make(host_, {&target, 1}, quiet);
    });
    extent.file = static_cast<int32_t>(views_.files.size());
    progress.add(source_.bytes_to_make(*target.weight));
  }
  memory_.spilled.push_back(filler.finish());
  views_.files.push_back(memory_.spilled.back()->path());
}

// Copies a kept weight to `to` and frees its memory.
bool WeightLoad::try_copy_kept(const WeightTarget& target, std::byte* to) {
  if (!kept_.has_memory(number_of(target))) return false;
  const PinnedBuffer memory = kept_.take(number_of(target));
  std::memcpy(to, memory.data(), memory.bytes());
  return true;
}

// Returns an empty buffer if there is no memory for a copy: the weight is then made again.
PinnedBuffer try_copy_from_device(Device& device, Device& host, const WeightView& from) {
  try {
    const auto bytes = static_cast<size_t>(from.bytes());
    PinnedBuffer copy(host, device, bytes, MemoryTag::kWeights);
    device.copy_to_host(copy.data(), from.data, bytes);
    return copy;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kOutOfMemory) throw;
    return {};
  }
}

// Returns how much of the host's budget is free for kept weights while the next plan loads.
uint64_t room_for_kept(const Device& device, const Model& model, const std::vector<Tier>& homes,
                       uint64_t host_budget) {
  constexpr uint64_t kLoading = uint64_t{64} << 20;
  const Tier host_tier = device.host_visible() ? Tier::kDevice : Tier::kHost;
  const uint64_t loading =
      weight_bytes(traits_of(device), model, homes, /*may_map=*/true).loading_host;
  const uint64_t reserved =
      bytes_by_home(model, homes)[static_cast<size_t>(host_tier)] + loading + kLoading;
  return host_budget - std::min(host_budget, reserved);
}

}  // namespace

ModelWeights load_weights(Device& device, const Model& model,
                          std::span<const std::filesystem::path> paths,
                          const WeightLoadOptions& options, const WeightPlacement& placement,
                          KeptWeights kept) {
  std::unique_ptr<WeightSource> source;
  if (paths.empty()) {
    source = std::make_unique<DummySource>(model);
  } else {
    source = std::make_unique<FileSource>(placement.host_beside(device), paths);
  }
  return WeightLoad(device, model, *source, options, placement, std::move(kept)).run();
}

KeptWeights keep_weights(Device& device, const Model& model, ModelWeights weights,
                         const WeightPlacement& next, uint64_t host_budget) {
  if (weights.empty()) return {};
  WeightMemory memory = weights.take_memory();
  const std::vector<Tier> homes = next.homes_of(model);
  uint64_t room = room_for_kept(device, model, homes, host_budget);
  KeptWeights kept(homes.size());
  const auto own_files = static_cast<int32_t>(weights.files.size() - memory.spilled.size());
  for (size_t i = 0; i < homes.size(); ++i) {
    const BoundWeight& weight = model.weights[i];
    const WeightView& on_device = weights.view(weight.slot);
    const bool in_host_memory = i < memory.host.size() && !memory.host[i].empty();
    if (on_device.empty() && !in_host_memory) {
      Extent extent = weights.streamed_of(weight.slot).extent;
      extent.file -= own_files;
      if (extent.file >= 0) kept.keep(i, extent);  // else it is in the model's own
      continue;
    }
    // Room is already reserved for weights that stay in host memory.
    const auto bytes = homes[i] == Tier::kHost ? 0 : static_cast<uint64_t>(weight.bytes());
    if (bytes > room) {
      if (in_host_memory) memory.host[i] = PinnedBuffer();
      continue;
    }
    room -= bytes;
    if (in_host_memory) {
      kept.keep(i, std::move(memory.host[i]));
    } else if (!memory.arena.empty()) {
      PinnedBuffer copy = try_copy_from_device(device, next.host_beside(device), on_device);
      if (copy.empty()) room = 0;
      kept.keep(i, std::move(copy));
    }
  }
  kept.keep_files(std::move(memory.spilled));
  return kept;
}

}  // namespace spillway
