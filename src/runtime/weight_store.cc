// SPDX-License-Identifier: Apache-2.0
// How a plan's weights become the next one's.
#include "runtime/weight_store.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "runtime/model_weights.h"
#include "runtime/weight_homes.h"
#include "storage/extent_reader.h"

namespace spillway {
namespace {

// Weights that were kept in files, one at a time.
class KeptReader {
 public:
  KeptReader(WeightStore& store, Device& host, IoQueue* queue)
      : store_(store), host_(host), queue_(queue) {}

  // False where there is no memory to read through: the weight is made again then.
  [[nodiscard]] bool try_begin() {
    if (reader_ != nullptr) return true;
    SPW_ASSERT(queue_ != nullptr);
    try {
      buffer_ = host_.allocate(kPieceBytes + 3 * kDirectAlignment, MemoryTag::kStaging);
      std::vector<std::filesystem::path> paths;
      for (const auto& file : store_.files()) paths.push_back(file->path());
      reader_ = std::make_unique<ExtentReader>(*queue_, paths);
      return true;
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kOutOfMemory) throw;
      return false;
    }
  }

  // Into memory of `device`, piece by piece.
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

  WeightStore& store_;
  Device& host_;
  Buffer buffer_;
  IoQueue* queue_;  // needed where something was kept in a file
  std::unique_ptr<ExtentReader> reader_;
};

}  // namespace

bool WeightStore::try_copy(size_t weight, std::byte* to) {
  if (!has_memory(weight)) return false;
  const PinnedBuffer memory = take(weight);
  std::memcpy(to, memory.data(), memory.bytes());
  return true;
}

// What the plan before has left goes where it lives now. Weights that were in memory and go to disk
// stay in the store: who writes the file finds them there.
void ModelWeights::take_kept(Device& device, WeightHomes& homes, const WeightPlacement& placement) {
  WeightStore* const store = placement.kept;
  if (store == nullptr || store->empty()) return;
  Device& host = placement.host == nullptr ? device : *placement.host;
  uint64_t to_write = 0;
  for (size_t i = 0; i < homes.tiers.size(); ++i) {
    if (homes.tiers[i] == Tier::kDisk && !homes.supplied[i] && !store->try_extent(i))
      to_write += align_up(static_cast<uint64_t>(homes.targets[i].weight->bytes()));
  }
  // There is no room for both the old file and the new.
  if (store->file_bytes() + to_write > placement.disk_budget) store->forget_files();

  KeptReader reader(*store, host, placement.queue);
  std::vector<bool> in_use(store->files().size());
  for (size_t i = 0; i < homes.tiers.size(); ++i) {
    const WeightTarget& target = homes.targets[i];
    const std::optional<Extent> extent = store->try_extent(i);
    if (homes.supplied[i] || !(store->has_memory(i) || extent)) continue;
    const auto bytes = static_cast<size_t>(target.weight->bytes());
    if (homes.tiers[i] == Tier::kDisk) {
      if (!extent) continue;
      Extent& there = streamed_of(target.weight->slot).extent;
      there = *extent;
      there.file += static_cast<int32_t>(files.size());
      in_use[static_cast<size_t>(extent->file)] = true;
    } else if (store->has_memory(i)) {
      device.copy_to_device(target.to, store->memory(i).data(), bytes);
    } else if (!reader.try_begin()) {
      continue;
    } else {
      reader.read(*extent, homes.tiers[i] == Tier::kHost ? host : device, target.to);
    }
    store->drop(i);
    homes.supplied[i] = true;
  }
  if (std::ranges::count(in_use, true) == 0) return;
  for (const auto& file : store->files()) {
    spilled_.push_back(file);
    files.push_back(file->path());
  }
}

uint64_t ModelWeights::disk_bytes() const {
  uint64_t bytes = 0;
  for (const auto& file : spilled_) bytes += file->bytes();
  return bytes;
}

bool ModelWeights::try_stay(const Device& device, const Model& model, const TierShares& shares,
                            uint64_t disk_budget) {
  if (homes_.empty() || homes_on(device, model, shares) != homes_) return false;
  if (disk_bytes() > disk_budget) return false;  // files that hold more than is of use by now
  counts_ = {.made = 0, .kept = static_cast<int>(homes_.size())};
  return true;
}

WeightStore ModelWeights::give_up(Device& device, const Model& model, const WeightPlacement& next,
                                  uint64_t host_budget) {
  Device& host = next.host == nullptr ? device : *next.host;
  const Tier host_tier = device.host_visible() ? Tier::kDevice : Tier::kHost;
  const std::vector<Tier> homes = homes_on(device, model, next.shares);
  // The next plan has so much host memory of its own while it takes from here.
  constexpr uint64_t kLoading = uint64_t{64} << 20;
  const uint64_t reserved = weight_bytes(model, homes).in_tier[static_cast<size_t>(host_tier)] +
                            weight_needs(device, model, next.shares, {}).loading_host + kLoading;
  uint64_t room = host_budget - std::min(host_budget, reserved);
  WeightStore store(model.weights.size());
  const size_t first_spilled = files.size() - spilled_.size();
  for (size_t i = 0; i < homes.size(); ++i) {
    const BoundWeight& weight = model.weights[i];
    const auto bytes = static_cast<uint64_t>(weight.bytes());
    const bool stays = homes[i] == Tier::kHost;  // in host memory, where room is reserved for it
    const WeightView& on_device = view(weight.slot);
    const bool in_host_memory = i < host_memory_.size() && !host_memory_[i].empty();
    if (on_device.empty() && !in_host_memory) {
      if (streamed.empty()) continue;  // nothing was loaded
      const StreamedWeight& there = streamed_of(weight.slot);
      if (there.extent.file < static_cast<int32_t>(first_spilled)) continue;  // the model's own
      Extent extent = there.extent;
      extent.file -= static_cast<int32_t>(first_spilled);
      store.keep(i, extent);
      continue;
    }
    if (!stays && bytes > room) {
      if (in_host_memory) host_memory_[i] = PinnedBuffer();
      continue;
    }
    if (!stays) room -= bytes;
    if (in_host_memory) {
      store.keep(i, std::move(host_memory_[i]));
    } else if (!arena_.empty()) {
      try {
        PinnedBuffer copy(host, device, bytes, MemoryTag::kWeights);
        device.copy_to_host(copy.data(), on_device.data, bytes);
        store.keep(i, std::move(copy));
      } catch (const Error& error) {
        if (error.code() != ErrorCode::kOutOfMemory) throw;
        room = 0;  // it is made again then
      }
    }
  }
  store.files() = std::move(spilled_);
  *this = ModelWeights();
  return store;
}

}  // namespace spillway
