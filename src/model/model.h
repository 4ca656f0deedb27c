// SPDX-License-Identifier: Apache-2.0
// Describes a model: its spec, and for each weight the type it is stored in and where its
// bytes are.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/model_spec.h"
#include "model/weight_slots.h"
#include "storage/tensor_index.h"

namespace spillway {

// A weight with its slot, its type, and its bytes in a file (none for dummy weights).
struct BoundWeight {
  WeightSlot slot;
  DType dtype;  // in memory
  // In the file, from its first row to its last; for a transposed weight, the whole tensor.
  std::optional<Extent> extent;
  std::optional<DType> loaded_from = {};  // the file's type, if loading changes it
  RowGroups groups = {};                  // how its rows (WeightSlot::stored_rows) lie in the file
  bool less_one = false;  // a norm's weights in the file are one less than those that multiply
  // If the tensor is [in, out]: its number of columns, and the column that is row 0. 0 columns: it
  // is not transposed.
  int64_t tensor_columns = 0, first_column = 0;

  int64_t bytes() const { return slot.rows * row_bytes(dtype, slot.cols); }
  DType file_dtype() const { return loaded_from.value_or(dtype); }
  int64_t file_bytes() const { return slot.rows * row_bytes(file_dtype(), slot.cols); }
  bool is_transposed() const { return tensor_columns > 0; }
  // Whether its bytes in the file are contiguous, and in the order of its rows.
  bool is_whole_in_file() const { return groups.rows == 0 && !is_transposed(); }
  // The extents of rows (WeightSlot::stored_rows) in the file. Not for a transposed weight.
  std::vector<Extent> file_extents(int64_t first, int64_t count) const;
};

struct Model {
  ModelSpec spec;
  std::vector<BoundWeight> weights;  // in the order of weight_slots()

  int64_t weight_bytes() const;
  // The type that most of the bytes have.
  DType main_dtype() const;
  // Whether a weight is multiplied by linear(); a table that is only looked up in, a norm or a
  // bias is not.
  bool is_multiplied(const WeightSlot& slot) const;
};

// Finds the family, reads the spec, and binds every weight; each must exist with the right
// shape and, for norms and biases, a plain type. Throws kInvalidArgument or kUnsupported,
// naming file and tensor.
Model describe_model(const ModelFiles& files);

// Requests G4 (FlexGen, section 5) for every plain matrix that is multiplied: loading then
// quantizes it. Matrices that are already quantized, or whose rows are not whole groups of 64, stay
// as they are.
struct Compression {
  int compressed = 0;  // matrices
  int kept = 0;        // multiplied matrices that stay as they are in the file
};
Compression compress_matrices(Model& model);

// Makes loading convert norms and biases to F32, whatever the files have, so that kernels
// read one type.
void widen_vectors(Model& model);

// Makes random weights of a known shape (known_models.h): "opt-30b" with F16 weights,
// "llama-2-7b:q4_0". Norms and biases are F32. Throws kInvalidArgument, listing the known names.
Model describe_dummy_model(std::string_view name);

}  // namespace spillway
