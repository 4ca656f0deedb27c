// SPDX-License-Identifier: Apache-2.0
// A network's weights in memory, each field with its shape.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "device/device.h"
#include "device/generation.h"
#include "memory/mapped_extents.h"
#include "memory/pinned_buffer.h"
#include "memory/weight_load_options.h"
#include "model/model.h"
#include "runtime/weight_placement.h"
#include "runtime/weight_store.h"
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
  bool pinned = false;              // in host memory that the device copies from at full speed
};

struct WeightHomes;  // what goes where, while loading

// Owns the bytes that its views point to: maps where every weight is mapped and stays as it is in
// the file, otherwise an arena, where matrices are in the layout that the device prefers, packed
// or quantized piece by piece on their way in. Each is in memory once. Those in host memory have a
// buffer each. What a placement keeps off the device is in `streamed`, in the form that the device
// computes with (views in `layers` are then empty). Move-only; the devices must outlive it.
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
  // Of the addresses of all that is on the device.
  uint64_t generation() const { return generation_.number(); }
  // Of a matrix of the first layer.
  DType matrix_type() const;
  // Whether all matrices that are multiplied with, wherever they are, are F16 or BF16.
  bool only_16_bit() const;
  // The one type of all matrices of layers, if it is one.
  std::optional<DType> layer_type() const;

  // How the weights came: made or read from the model's files, or taken from the plan before.
  struct Counts {
    int made = 0, kept = 0;
  };
  const Counts& counts() const { return counts_; }

  // Whether a plan with these shares has all of them where they are: then they stay.
  [[nodiscard]] bool try_stay(const Device& device, const Model& model, const TierShares& shares,
                              uint64_t disk_budget = ~uint64_t{0});
  // Of files of their own.
  uint64_t disk_bytes() const;
  // Of the model's files, in host memory but allocated by nobody.
  uint64_t mapped_bytes() const { return mapped_bytes_; }
  // Otherwise: gives back all memory but for what the next plan may want: what is in host memory or
  // in a file of ours is handed on, what is on the device is copied to host memory. `next` is that
  // plan's placement; of host memory not more than `host_budget` is in use when it takes its own.
  WeightStore give_up(Device& device, const Model& model, const WeightPlacement& next,
                      uint64_t host_budget);

 private:
  WeightHomes place(Device& device, const Model& model, const WeightPlacement& placement);
  void place_on_device(Device& device, WeightHomes& homes);
  void take_kept(Device& device, WeightHomes& homes, const WeightPlacement& placement);
  StreamedWeight& streamed_of(const WeightSlot& slot);
  WeightView& view(const WeightSlot& slot);
  void tie_head();
  void for_layer_types(const std::function<void(DType)>& f) const;  // of all matrices of layers

  Generation generation_;
  MappedExtents maps_;
  uint64_t mapped_bytes_ = 0;
  Buffer arena_;
  std::vector<PinnedBuffer> host_memory_;  // by number in Model::weights; empty: not there
  std::vector<std::shared_ptr<TemporaryFile>> spilled_;  // the last ones of `files`
  std::vector<Tier> homes_;                              // by number, too
  Counts counts_;
};

}  // namespace spillway
