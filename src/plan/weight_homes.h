// SPDX-License-Identifier: Apache-2.0
// Which weights live where, and what that takes of each memory: decided from the model and a plan's
// shares, before anything is loaded.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "base/tier.h"
#include "model/model.h"
#include "plan/device_traits.h"
#include "plan/weight_plan.h"

namespace spillway {

// A home for each of model.weights. Homes are whole linear ops (q, k and v; gate and up): a layer
// has four, a model hundreds, so shares come out within a percent, and where an op is on the device
// nobody has to be waited for. Of the layers' matrices each tier has its share, spread evenly over
// the layers, so that every layer moves about as many bytes. Embeddings and head live
// where `embeddings` says, everything else (norms, biases, projections) is small and lives on the
// device. What would live in host memory does so, too, where that is the device's.
//
// Matrices that an override names live where it says; the shares are of the others, spread as if
// those were all. Throws kInvalidArgument for an override that names nothing of this model, or a
// layer that it does not have.
std::vector<Tier> weight_homes(bool host_visible, const Model& model, WeightPlan plan);
// The shares that come of it, of the bytes of all layers' matrices.
TierShares placed_shares(const Model& model, std::span<const Tier> homes, bool has_device = true);

// The weight that logits are made with: the token embedding where that is the head too. Null in a
// part of a model that has no head (model/model_part.h).
const BoundWeight* try_head_of(const Model& model);
// The layout that a weight has in memory.
WeightLayout weight_layout(const DeviceTraits& traits, const Model& model,
                           const BoundWeight& weight);
// Whether a step can use the rows of a weight as the model's file has them.
bool has_rows_as_stored(const BoundWeight& weight, WeightLayout layout);
// Whether the whole weight is a part of the model's file.
bool is_as_stored(const BoundWeight& weight, WeightLayout layout);
// Whether loading puts a weight together in host memory before it becomes what it should be: one
// that is transposed, or whose groups of 16 rows lie apart.
bool is_assembled(const BoundWeight& weight, WeightLayout layout);

// Of bytes in an arena or a slot.
inline constexpr uint64_t kWeightAlignment = 256;
uint64_t aligned_weight_bytes(int64_t bytes);
// By tier, each weight with what aligns it.
std::array<uint64_t, kTierCount> bytes_by_home(const Model& model, const std::vector<Tier>& homes);

// What rows of a weight take of the slot that they come into: `from_disk` (none: from memory) where
// they are read in place, in whole blocks of the disk. A slot has kStreamSlotBytes besides.
uint64_t streamed_weight_bytes(int64_t bytes, std::span<const Extent> from_disk);
extern const uint64_t kStreamSlotBytes;

// Staging buffers of weights that stream (runtime/weight_stream.h) where bytes do not go straight
// into place, each with room for a piece at any offset of a file.
inline constexpr int kStreamStages = 16;
inline constexpr uint64_t kStreamReadBytes = uint64_t{2} << 20;
extern const uint64_t kStreamStageBytes;

// Host memory that writes weights to disk: this, and the largest of them.
inline constexpr uint64_t kWeightWriteBytes = uint64_t{16} << 20;
uint64_t weight_writing_bytes(uint64_t largest);

struct WeightBytes {
  uint64_t device = 0, host = 0, disk = 0;
  uint64_t mapped = 0;        // of the host's: pages of files, which other processes may share
  bool streams = false;       // some of it comes to the device in every step
  bool from_disk = false;     // some of that comes from there
  uint64_t loading_host = 0;  // of host memory, while they are written to disk or put together
};
// `may_map`: weights that are wanted as the files have them may be those files' pages.
WeightBytes weight_bytes(const DeviceTraits& traits, const Model& model,
                         const std::vector<Tier>& homes, bool may_map);
WeightBytes weight_bytes(const DeviceTraits& traits, const Model& model, const WeightPlan& plan,
                         bool may_map);

}  // namespace spillway
