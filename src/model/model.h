// SPDX-License-Identifier: Apache-2.0
// A model described: its spec, and for each weight the type it is stored in and where its bytes
// are.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/model_spec.h"
#include "model/weight_slots.h"
#include "storage/tensor_index.h"

namespace spillway {

// A weight found: its slot, stored type, and bytes in a file (none for dummy weights).
struct BoundWeight {
  WeightSlot slot;
  DType dtype;
  std::optional<Extent> extent;

  int64_t bytes() const { return slot.rows * row_bytes(dtype, slot.cols); }
};

struct Model {
  ModelSpec spec;
  std::vector<BoundWeight> weights;  // in the order of weight_slots()

  int64_t weight_bytes() const;
  // The type most of the matrix bytes are stored in.
  DType main_dtype() const;
};

// Finds the family, reads the spec, and binds every weight; each must be there with the right shape
// and, for norms and biases, a plain type. Throws kInvalidArgument or kUnsupported naming file and
// tensor.
Model describe_model(const ModelFiles& files);

// "opt-30b" with F16 weights, "llama-2-7b:q4_0": random weights of a known shape (see
// known_models.h). Norms and biases are F32. Throws kInvalidArgument listing the known names.
Model describe_dummy_model(std::string_view name);

}  // namespace spillway
