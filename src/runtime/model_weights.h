// SPDX-License-Identifier: Apache-2.0
// A network's weights in memory, each field with its shape.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <vector>

#include "device/device.h"
#include "memory/mapped_extents.h"
#include "memory/pinned_buffer.h"
#include "memory/weight_load_options.h"
#include "model/model.h"
#include "runtime/weight_placement.h"
#include "storage/temporary_file.h"
#include "tensor/tensor_view.h"

namespace spillway {

// Absent weights are empty views.
struct LinearWeights {
  WeightView weight;  // [out, in]
  WeightView bias;    // [1, out]
};

struct NormWeights {
  WeightView weight;  // [1, hidden]
  WeightView bias;    // [1, hidden]
};

struct LayerWeights {
  NormWeights attention_norm;
  LinearWeights query;          // [q_dim, hidden]
  LinearWeights key;            // [kv_dim, hidden]
  LinearWeights value;          // [kv_dim, hidden]
  LinearWeights attention_out;  // [hidden, q_dim]
  NormWeights mlp_norm;
  LinearWeights gate;  // [ffn, hidden], gated MLPs only
  LinearWeights up;    // [ffn, hidden]
  LinearWeights down;  // [hidden, ffn]
};

// Throws kInternal for a role that is not a layer's.
WeightView& weight_of(LayerWeights& layer, WeightRole role);

// A weight that does not live on the device: where it is until a layer needs it.
struct StreamedWeight {
  WeightRole role;
  WeightView view;                  // as it will be on the device; its data is set there
  const std::byte* host = nullptr;  // in host memory; null: in a file
  Extent extent = {};               // of ModelWeights::files
};

// What those of a layer take in device memory. Such as are read in place take whole blocks.
uint64_t streamed_bytes(std::span<const StreamedWeight> weights);

// What weights take of each memory, before they are loaded.
struct WeightNeeds {
  uint64_t device = 0, host = 0, disk = 0;
  uint64_t slot = 0;          // on the device: the largest layer's share that streams through
  int streamed_layers = 0;    // that have one
  bool from_disk = false;     // some of it comes from there
  uint64_t loading_host = 0;  // of host memory, while they are written to disk
};
WeightNeeds weight_needs(const Device& device, const Model& model, const TierShares& shares,
                         const WeightLoadOptions& options);

// Owns the bytes that its views point to: maps where every weight is mapped and stays as it is in
// the file, otherwise an arena, where matrices are in the layout that the device prefers, packed
// or quantized piece by piece on their way in. Each is in memory once. What a placement keeps off
// the device is in `streamed`, in the form that the device computes with (views in `layers` are
// then empty). Move-only; the devices must outlive it.
class ModelWeights {
 public:
  ModelWeights() = default;  // none yet
  // Loads the weights of `model` from `paths` (those of its files).
  ModelWeights(Device& device, const Model& model, std::span<const std::filesystem::path> paths,
               const WeightLoadOptions& options, const WeightPlacement& placement = {});
  // Random weights, generated in place in their types (those in memory).
  static ModelWeights dummy(Device& device, const Model& model, const WeightLoadOptions& options,
                            const WeightPlacement& placement = {});

  WeightView token_embedding;     // [vocab, embedding_dim]
  WeightView position_embedding;  // [max_context + offset, hidden], learned positions only
  WeightView project_in;          // [hidden, embedding_dim], where these differ
  WeightView project_out;         // [embedding_dim, hidden]
  NormWeights final_norm;
  WeightView head;  // [vocab, embedding_dim]; the token embedding itself when tied
  std::vector<LayerWeights> layers;

  std::vector<std::vector<StreamedWeight>> streamed;  // [layer]; empty when all is on the device
  std::vector<std::filesystem::path> files;           // of streamed weights
  bool host_is_pinned() const { return host_arena_.is_pinned(); }
  // Of a matrix of the first layer.
  DType matrix_type() const;

 private:
  struct Homes;  // what goes where, while loading
  Homes place(Device& device, const Model& model, const WeightPlacement& placement);
  WeightView& view(const WeightSlot& slot);
  void tie_head();

  MappedExtents maps_;
  Buffer arena_;
  PinnedBuffer host_arena_;
  std::unique_ptr<TemporaryFile> spilled_;
};

}  // namespace spillway
