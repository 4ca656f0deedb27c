// SPDX-License-Identifier: Apache-2.0
// A network's weights: each as a view with its shape, and the memory and files in which their bytes
// are.
//
// Three files share what happens to a weight's bytes: this one owns them while a plan runs,
// kept_weights.h keeps them between two plans, and weight_mover.h moves them from their source to
// the first, from there to the second, and back. The mover knows both; they know neither it nor
// each other.
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
#include "device/address_epoch.h"
#include "device/device.h"
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
  WeightView weight;              // [out, in]; [1, columns] for a norm
  WeightView bias;                // [1, out]; like its weight for a norm
  OpKind kind = OpKind::kLinear;  // kind of its op

  // Whether it is a matrix on the device, which is multiplied there.
  bool is_matrix() const { return kind == OpKind::kLinear && !weight.empty(); }
};

// The weights of a list of ops (model/layer_spec.h).
struct ListWeights {
  std::vector<std::vector<MatrixWeights>> ops;  // [op][matrix]

  // Returns an empty entry if the op has no such matrix.
  const MatrixWeights& of(int op, int matrix = 0) const;
};

// A weight that does not live on the device: where it is until a layer needs it.
struct StreamedWeight {
  int op = 0, matrix = 0;           // in its layer's list
  WeightView view;                  // as on the device, without the data
  const std::byte* host = nullptr;  // its bytes in host memory; null: in a file
  Extent extent = {};               // place in WeightViews::files
  RowGroups groups = {};            // how its rows lie in the extent
  bool pinned = false;  // whether `host` is pinned, so that the device copies it at full speed

  // Returns where rows are in the file.
  std::vector<Extent> extents(int64_t first, int64_t count) const {
    return extents_of_rows(extent, groups, static_cast<uint64_t>(view.row_bytes()), first, count);
  }
};

// Facts of a model that activations, kernels and therefore the bits of results depend on, wherever
// its weights are.
struct ModelFacts {
  DType matrix_type = DType::kF32;  // of the first matrix of the first layer
  MatrixFacts matrices = {};
  WeightTypes layer_types = {};  // of all matrices of layers; empty if these have more than two
};

// Views of every weight of a network. Weights that a placement keeps off the device are in
// `streamed`, in the form that the device computes with; their views in `layers` are then empty.
struct WeightViews {
  ListWeights embedding, head;  // a head that is the token embedding has its view
  std::vector<ListWeights> layers;

  std::vector<std::vector<StreamedWeight>> streamed;  // [layer]; empty when all is on the device
  std::vector<std::filesystem::path> files;           // of streamed weights
  // Embeddings and head in host memory; their views above are then empty. Rows of the tables are
  // looked up by token and by position, and the head is streamed after the last layer.
  struct HostTables {
    WeightView by_token, by_position;
  };
  HostTables on_host;
  std::optional<StreamedWeight> streamed_head;

  // Returns the view of a weight, which may be set; a missing layer, op or matrix is added.
  WeightView& view(const WeightSlot& slot);
  // Returns a layer's weights, or the head's for any number after the last layer.
  const ListWeights& list(int layer) const {
    return static_cast<size_t>(layer) < layers.size() ? layers[static_cast<size_t>(layer)] : head;
  }
  // Throws kInternal if there is no such weight. `op` is an index of LayerSpec::ops.
  StreamedWeight& streamed_of(const WeightSlot& slot);
  const StreamedWeight& streamed_of(int layer, int op, int matrix) const;

  ModelFacts facts() const { return {matrix_type(), matrix_facts(), layer_types()}; }
  // Returns the type of the first matrix of the first layer.
  DType matrix_type() const;
  MatrixFacts matrix_facts() const;
  // Returns the types of all matrices of layers; empty if these have more than two.
  WeightTypes layer_types() const;

 private:
  void for_layer_matrices(const std::function<void(const WeightView&)>& f) const;
};

// The bytes of weights: file mappings if every weight is mapped and stays as it is in the file,
// otherwise an arena with matrices in the layout that the device prefers. Each weight is in memory
// once.
struct WeightMemory {
  AddressEpoch epoch;  // address epoch of what is on the device
  MappedExtents maps;
  uint64_t mapped_bytes = 0;
  Buffer arena;                    // on the device
  std::vector<PinnedBuffer> host;  // by number in Model::weights; empty: not there
  std::vector<std::shared_ptr<TemporaryFile>> spilled;  // the last WeightViews::files
};

// Owns the bytes that its views point to, from when they are all loaded (weight_mover.h) until it
// is destroyed. Move-only; the devices must outlive it.
class ModelWeights : public WeightViews {
 public:
  // How many weights were made or read from the model's files, and how many were kept from the
  // previous plan.
  struct Counts {
    int made = 0, kept = 0;
  };
  ModelWeights() = default;  // has no weights
  // `homes` has the memory in which each weight lives, by number in Model::weights.
  ModelWeights(WeightViews views, WeightMemory memory, std::vector<Tier> homes, Counts counts);

  const Counts& counts() const { return counts_; }
  bool empty() const { return homes_.empty(); }
  // Returns true if the next plan has all weights where they are now: they then stay.
  [[nodiscard]] bool try_stay(const Model& model, const WeightPlacement& next);

  // Returns the address epoch of all weights on the device.
  uint64_t address_epoch() const { return memory_.epoch.number(); }
  // Returns the size of the files that were written for these weights.
  uint64_t disk_bytes() const;
  // Returns the mapped bytes of the model's files: host memory that no device has allocated.
  uint64_t mapped_bytes() const { return memory_.mapped_bytes; }

  // Hands the memory over to code that moves the weights on. The views stay valid as long as it.
  WeightMemory take_memory() { return std::move(memory_); }

 private:
  WeightMemory memory_;
  std::vector<Tier> homes_;
  Counts counts_;
};

}  // namespace spillway
