// SPDX-License-Identifier: Apache-2.0
#include "plan/weight_homes.h"

#include <algorithm>
#include <utility>

#include "base/checked_math.h"
#include "base/error.h"
#include "storage/aligned_buffer.h"
#include "storage/extent_reader.h"

namespace spillway {

const uint64_t kStreamSlotBytes = kDirectAlignment;
const uint64_t kStreamStageBytes = kStreamReadBytes + 3 * kDirectAlignment;

namespace {

bool is_embedding_or_head(const WeightSlot& slot) {
  return slot.is_table() || (slot.layer == kHeadList && slot.name == "head" && !slot.is_bias);
}

void check_overrides(const Model& model, const std::vector<WeightOverride>& overrides) {
  for (size_t i = 0; i < overrides.size(); ++i) {
    for (const LayerRange& range : overrides[i].layers) {
      SPW_CHECK(range.last < model.spec.layer_count(), kInvalidArgument,
                "overrides[{}] of the plan names layer {}, and {} has layers 0 to {}", i,
                range.last, model.spec.name, model.spec.layer_count() - 1);
    }
    const bool any = std::ranges::any_of(model.weights, [&](const BoundWeight& weight) {
      return weight.slot.is_layer_matrix() && overrides[i].names(weight.slot);
    });
    SPW_CHECK(any, kInvalidArgument,
              "overrides[{}] of the plan names a matrix that {} does not have", i, model.spec.name);
  }
}

std::optional<Tier> try_named_home(const WeightPlan& plan, const WeightSlot& slot) {
  for (auto entry = plan.overrides.rbegin(); entry != plan.overrides.rend(); ++entry) {
    if (entry->names(slot)) return entry->home;
  }
  return std::nullopt;
}

}  // namespace

bool WeightOverride::names(const WeightSlot& slot) const {
  if (!matrix.empty() && matrix != slot.name && (matrix != "qkv" || matrix != slot.op_name))
    return false;
  return layers.empty() || std::ranges::any_of(layers, [&](const LayerRange& range) {
           return slot.layer >= range.first && slot.layer <= range.last;
         });
}

std::vector<Tier> weight_homes(bool host_visible, const Model& model, WeightPlan plan) {
  SPW_ASSERT(plan.embeddings != Tier::kDisk);
  check_overrides(model, plan.overrides);
  TierShares& shares = plan.shares;
  if (host_visible) {  // there is only one memory
    shares.device += std::exchange(shares.host, 0);
    plan.embeddings = Tier::kDevice;
    for (WeightOverride& entry : plan.overrides) {
      if (entry.home == Tier::kHost) entry.home = Tier::kDevice;
    }
  }
  const double share[kTierCount] = {shares.device, shares.host, shares.disk};
  std::vector<Tier> homes;
  std::vector<size_t> together;  // matrices of one linear op that no override names
  double seen = 0, given[kTierCount] = {};
  const auto give_home = [&] {
    double bytes = 0;
    for (const size_t i : together) bytes += static_cast<double>(model.weights[i].bytes());
    // Chooses the tier that is furthest behind its share of the bytes so far.
    seen += bytes;
    int best = 0;
    double most = -1;
    for (int tier = 0; tier < kTierCount; ++tier) {
      const double behind = share[tier] * seen - given[tier];
      if (share[tier] > 0 && behind > most) best = tier, most = behind;
    }
    given[best] += bytes;
    for (const size_t i : together) homes[i] = static_cast<Tier>(best);
    together.clear();
  };
  for (const BoundWeight& weight : model.weights) {
    const WeightSlot& slot = weight.slot;
    homes.push_back(is_embedding_or_head(slot) ? plan.embeddings : Tier::kDevice);
    if (!slot.is_layer_matrix()) continue;
    if (!together.empty()) {
      if (!model.weights[together.back()].slot.same_op(slot)) give_home();
    }
    if (const auto named = try_named_home(plan, slot)) {
      homes.back() = *named;
    } else {
      together.push_back(homes.size() - 1);
    }
  }
  if (!together.empty()) give_home();
  return homes;
}

TierShares placed_shares(const Model& model, std::span<const Tier> homes, bool has_device) {
  std::array<double, kTierCount> bytes = {};
  double all = 0;
  for (size_t i = 0; i < homes.size(); ++i) {
    const WeightSlot& slot = model.weights[i].slot;
    if (!slot.is_layer_matrix()) continue;
    bytes[static_cast<size_t>(homes[i])] += static_cast<double>(model.weights[i].bytes());
    all += static_cast<double>(model.weights[i].bytes());
  }
  const auto share = [&](Tier tier) { return bytes[static_cast<size_t>(tier)] / all; };
  // Without a device the memory that computes is the host's.
  if (!has_device) return {0, share(Tier::kDevice), share(Tier::kDisk)};
  return {share(Tier::kDevice), share(Tier::kHost), share(Tier::kDisk)};
}

const BoundWeight* try_head_of(const Model& model) {
  if (model.spec.head->ops.empty()) return nullptr;
  const MatrixSpec& head = model.spec.head->ops.back().matrices.front();
  const std::string_view name = head.same_as.empty() ? head.name : head.same_as;
  // The search is short, because weights outside the layers come before all others.
  const auto found = std::ranges::find_if(model.weights, [&](const BoundWeight& weight) {
    return !weight.slot.in_layer() && weight.slot.name == name;
  });
  SPW_ASSERT(found != model.weights.end());
  return &*found;
}

WeightLayout weight_layout(const DeviceTraits& traits, const Model& model,
                           const BoundWeight& weight) {
  const WeightSlot& slot = weight.slot;
  return model.is_multiplied(slot) && slot.rows >= kGroupRows
             ? traits.layouts[static_cast<size_t>(weight.dtype)]
             : WeightLayout::kRows;
}

bool has_rows_as_stored(const BoundWeight& weight, WeightLayout layout) {
  return weight.extent && !weight.loaded_from && !weight.is_transposed() &&
         layout == WeightLayout::kRows;
}

bool is_as_stored(const BoundWeight& weight, WeightLayout layout) {
  return has_rows_as_stored(weight, layout) && weight.is_whole_in_file();
}

bool is_assembled(const BoundWeight& weight, WeightLayout layout) {
  if (!weight.extent) return false;
  return weight.is_transposed() ||
         (layout == WeightLayout::kGroups16 && weight.groups.rows % kGroupRows != 0);
}

uint64_t aligned_weight_bytes(int64_t bytes) {
  return try_align_up(static_cast<uint64_t>(bytes), kWeightAlignment).value();
}

std::array<uint64_t, kTierCount> bytes_by_home(const Model& model, const std::vector<Tier>& homes) {
  std::array<uint64_t, kTierCount> sums = {};
  for (size_t i = 0; i < homes.size(); ++i)
    sums[static_cast<size_t>(homes[i])] += aligned_weight_bytes(model.weights[i].bytes());
  return sums;
}

uint64_t streamed_weight_bytes(int64_t bytes, std::span<const Extent> from_disk) {
  return from_disk.empty() ? aligned_weight_bytes(bytes) : ExtentReader::buffer_bytes(from_disk);
}

uint64_t weight_writing_bytes(uint64_t largest) {
  return kWeightWriteBytes + kDirectAlignment + largest;
}

WeightBytes weight_bytes(const DeviceTraits& traits, const Model& model,
                         const std::vector<Tier>& homes, bool may_map) {
  const auto by_home = bytes_by_home(model, homes);
  WeightBytes all;
  all.device = by_home[static_cast<size_t>(Tier::kDevice)];
  all.disk = by_home[static_cast<size_t>(Tier::kDisk)];
  all.from_disk = all.disk > 0;
  bool mapped = traits.host_visible && may_map && all.disk == 0;
  uint64_t largest_written = 0, largest_assembled = 0;
  const BoundWeight* const head = try_head_of(model);
  for (size_t i = 0; i < homes.size(); ++i) {
    const BoundWeight& weight = model.weights[i];
    const WeightLayout layout = weight_layout(traits, model, weight);
    const bool stays = has_rows_as_stored(weight, layout);
    mapped = mapped && is_as_stored(weight, layout);
    if (is_assembled(weight, layout)) {
      largest_assembled = std::max(
          largest_assembled, static_cast<uint64_t>(weight.file_bytes()) + weight.extent->bytes);
    }
    if (homes[i] == Tier::kDevice) continue;
    const auto bytes = static_cast<uint64_t>(weight.bytes());
    if (homes[i] == Tier::kHost) all.host += bytes;
    // Embeddings in host memory do not stream, because only rows of them are looked up.
    all.streams = all.streams || weight.slot.in_layer() || &weight == head;
    if (homes[i] == Tier::kDisk && !stays) largest_written = std::max(largest_written, bytes);
  }
  if (mapped) all.mapped = std::exchange(all.device, 0);
  if (largest_written > 0) all.loading_host = weight_writing_bytes(largest_written);
  all.loading_host += largest_assembled;
  return all;
}

}  // namespace spillway
