// SPDX-License-Identifier: Apache-2.0
// Decides which weights live where and how many bytes of each memory they take, from the model and
// a plan's shares of the weights in each memory, before anything is loaded.
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

// Returns a home for each of model.weights, the memory in which it lives. Homes are given to whole
// linear ops (q, k and v; gate and up): a layer has four, a model hundreds, so shares are met
// within a percent, and an op on the device waits for no copy. Each tier gets its share of the
// layers' matrices, spread evenly over the layers, so that every layer moves about as many bytes.
// Embeddings and head live where `embeddings` says. Everything else (norms, biases, projections) is
// small and lives on the device. If the device computes in host memory (`host_visible`), homes in
// host memory become homes on the device.
//
// Matrices that an override names live where it says; the shares apply to the others as if those
// were all. Throws kInvalidArgument for an override that names no matrix of this model, or a layer
// that it does not have.
std::vector<Tier> weight_homes(bool host_visible, const Model& model, WeightPlan plan);
// Returns the resulting shares of the bytes of all layers' matrices.
TierShares placed_shares(const Model& model, std::span<const Tier> homes, bool has_device = true);

// Returns the weight that computes logits, which may be the token embedding. Null in a part of a
// model that has no head (model/model_part.h).
const BoundWeight* try_head_of(const Model& model);
// Returns the layout that a weight has in memory.
WeightLayout weight_layout(const DeviceTraits& traits, const Model& model,
                           const BoundWeight& weight);
// Returns whether a step can use the rows of a weight as the model's file has them.
bool has_rows_as_stored(const BoundWeight& weight, WeightLayout layout);
// Returns whether a step can use the whole weight as one contiguous part of the model's file.
bool is_as_stored(const BoundWeight& weight, WeightLayout layout);
// Returns whether loading must assemble a weight in host memory before it is converted: one that is
// transposed, or whose groups of 16 rows are not contiguous in the file.
bool is_assembled(const BoundWeight& weight, WeightLayout layout);

// Alignment of weights in an arena or a slot.
inline constexpr uint64_t kWeightAlignment = 256;
uint64_t aligned_weight_bytes(int64_t bytes);
// Returns the bytes of the weights in each tier, each weight aligned.
std::array<uint64_t, kTierCount> bytes_by_home(const Model& model, const std::vector<Tier>& homes);

// Returns the bytes that rows of a weight take in the slot into which they are copied. `from_disk`
// has the extents of rows that are read into the slot directly, in whole disk blocks; it is empty
// for rows from memory. A slot has kStreamSlotBytes in addition.
uint64_t streamed_weight_bytes(int64_t bytes, std::span<const Extent> from_disk);
extern const uint64_t kStreamSlotBytes;

// Staging buffers of streamed weights (runtime/weight_stream.h) that are not read directly into
// place. Each has room for a chunk that begins at any offset of a file.
inline constexpr int kStreamStages = 16;
inline constexpr uint64_t kStreamReadBytes = uint64_t{2} << 20;
extern const uint64_t kStreamStageBytes;

// Host memory that is used to write weights to disk: this much, and the largest of them.
inline constexpr uint64_t kWeightWriteBytes = uint64_t{16} << 20;
uint64_t weight_writing_bytes(uint64_t largest);

struct WeightBytes {
  uint64_t device = 0, host = 0, disk = 0;
  uint64_t mapped = 0;        // of the host's memory: file pages, which other processes may share
  bool streams = false;       // some weights are copied to the device in every step
  bool from_disk = false;     // some weights live on disk
  uint64_t loading_host = 0;  // of host memory, used while weights are written to disk or assembled
};
// Returns the bytes of the weights. With `may_map`, weights that are used as the files have them
// may be those files' pages.
WeightBytes weight_bytes(const DeviceTraits& traits, const Model& model,
                         const std::vector<Tier>& homes, bool may_map);

}  // namespace spillway
