// SPDX-License-Identifier: Apache-2.0
// A network's weights: each as a view with its shape, and the memory and files behind them.
//
// Three files share what happens to a weight's bytes. This one owns them while a plan runs,
// kept_weights.h remembers them between two plans, and weight_mover.h moves them: from where they
// come to the one, from there to the other, and back. The mover knows both; they know neither it
// nor each other.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/tier.h"
#include "device/device.h"
#include "device/generation.h"
#include "memory/mapped_extents.h"
#include "memory/pinned_buffer.h"
#include "model/model.h"
#include "runtime/weight_placement.h"
#include "storage/temporary_file.h"
#include "storage/tensor_index.h"
#include "tensor/tensor_view.h"

namespace spillway {

// Absent weights are empty views.
struct MatrixWeights {
  WeightView weight;              // [out, in]; of a norm [1, columns]
  WeightView bias;                // [1, out]; of a norm as its weight
  OpKind kind = OpKind::kLinear;  // of its op

  // On the device, and multiplied there.
  bool is_matrix() const { return kind == OpKind::kLinear && !weight.empty(); }
};

// The weights of a list of ops (model/layer_spec.h).
struct ListWeights {
  std::vector<std::vector<MatrixWeights>> ops;  // [op][matrix]

  // Nothing where the op has no such matrix.
  const MatrixWeights& of(int op, int matrix = 0) const;
};

// A weight that does not live on the device: where it is until a layer needs it.
struct StreamedWeight {
  int op = 0, matrix = 0;           // of its layer's list
  WeightView view;                  // as it will be on the device; its data is set there
  const std::byte* host = nullptr;  // in host memory; null: in a file
  Extent extent = {};               // of WeightViews::files
  RowGroups groups = {};            // of its rows in the extent
  bool pinned = false;              // in host memory that the device copies from at full speed

  // Where rows are in the file.
  std::vector<Extent> extents(int64_t first, int64_t count) const {
    return extents_of_rows(extent, groups, static_cast<uint64_t>(view.row_bytes()), first, count);
  }
};

// Facts of a model by which activations and kernels, and thereby bits, are chosen, wherever its
// weights are.
struct ModelFacts {
  DType matrix_type = DType::kF32;  // of a matrix of the first layer
  MatrixFacts matrices = {};
  WeightTypes layer_types = {};  // of all matrices of layers; empty where these are more than two
};

// Every weight of a network. What a placement keeps off the device is in `streamed`, in the form
// that the device computes with (views in `layers` are then empty).
struct WeightViews {
  ListWeights embedding, head;  // a head that is the token embedding has its view
  std::vector<ListWeights> layers;

  std::vector<std::vector<StreamedWeight>> streamed;  // [layer]; empty when all is on the device
  std::vector<std::filesystem::path> files;           // of streamed weights
  // Embeddings and head in host memory (the views above are empty then): tables that rows are
  // looked up in, by token and by position, and the head, which streams behind the last layer.
  struct HostTables {
    WeightView by_token, by_position;
  };
  HostTables on_host;
  std::optional<StreamedWeight> streamed_head;

  // The view of a weight; a layer, op or matrix that was not there is added.
  WeightView& view(const WeightSlot& slot);
  // Of a layer, or of the head's list behind the last of them.
  const ListWeights& list(int layer) const {
    return static_cast<size_t>(layer) < layers.size() ? layers[static_cast<size_t>(layer)] : head;
  }
  // Throws kInternal where there is none. `op` is of LayerSpec::ops.
  StreamedWeight& streamed_of(const WeightSlot& slot);
  const StreamedWeight& streamed_of(int layer, int op, int matrix) const;

  ModelFacts facts() const { return {matrix_type(), matrix_facts(), layer_types()}; }
  // Of a matrix of the first layer.
  DType matrix_type() const;
  MatrixFacts matrix_facts() const;
  // The types of all matrices of layers; empty where these are more than two.
  WeightTypes layer_types() const;

 private:
  void for_layer_matrices(const std::function<void(const WeightView&)>& f) const;
};

// The bytes themselves: maps where every weight is mapped and stays as it is in the file,
// otherwise an arena, where matrices are in the layout that the device prefers. Each is in memory
// once.
struct WeightMemory {
  Generation generation;  // of what is on the device
  MappedExtents maps;
  uint64_t mapped_bytes = 0;
  Buffer arena;                    // on the device
  std::vector<PinnedBuffer> host;  // by number in Model::weights; empty: not there
  std::vector<std::shared_ptr<TemporaryFile>> spilled;  // the last ones of WeightViews::files
};

// Owns the bytes that its views point to, from the moment they are all there (weight_mover.h) until
// it is gone. Move-only; the devices must outlive it.
class ModelWeights : public WeightViews {
 public:
  // How the weights came: made or read from the model's files, or taken from the plan before.
  struct Counts {
    int made = 0, kept = 0;
  };
  ModelWeights() = default;  // none yet
  // `homes`: of each weight, by number in Model::weights.
  ModelWeights(WeightViews views, WeightMemory memory, std::vector<Tier> homes, Counts counts);

  const Counts& counts() const { return counts_; }
  bool empty() const { return homes_.empty(); }
  // Whether the next plan has all of them where they are: then they stay.
  [[nodiscard]] bool try_stay(const Device& device, const Model& model,
                              const WeightPlacement& next);

  // Of the addresses of all that is on the device.
  uint64_t generation() const { return memory_.generation.number(); }
  // Of files of their own.
  uint64_t disk_bytes() const;
  // Of the model's files, in host memory but allocated by nobody.
  uint64_t mapped_bytes() const { return memory_.mapped_bytes; }

  // For who moves them on: the views say what is where, until it is gone.
  WeightMemory take_memory() { return std::move(memory_); }

 private:
  WeightMemory memory_;
  std::vector<Tier> homes_;
  Counts counts_;
};

}  // namespace spillway
