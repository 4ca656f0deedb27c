// SPDX-License-Identifier: Apache-2.0
// For tests: makes the tensors of a network's files, without their bytes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "model/weight_slots.h"
#include "storage/tensor_index.h"

namespace spillway {

// Adds the tensors in F32, one after the other, in file 0. Returns the first weight of each. Call
// ModelFiles::finish() afterwards.
inline std::vector<WeightSlot> add_tensors(std::span<const WeightName> names, const ModelSpec& spec,
                                           ModelFiles& files) {
  std::vector<WeightSlot> first;
  uint64_t offset = 0;
  for (const WeightSlot& slot : weight_slots(spec)) {
    const TensorPlace place = place_of(names, spec, slot);
    if (std::ranges::find(files.tensors, place.name, &TensorInfo::name) != files.tensors.end())
      continue;
    TensorInfo tensor;
    tensor.name = place.name;
    tensor.shape = {place.tensor_rows};
    if (!slot.is_vector())
      tensor.shape.insert(place.transposed ? tensor.shape.begin() : tensor.shape.end(), slot.cols);
    tensor.extent = {0, offset, static_cast<uint64_t>(tensor.elements()) * sizeof(float)};
    offset += tensor.extent.bytes;
    files.tensors.push_back(tensor);
    first.push_back(slot);
  }
  return first;
}

}  // namespace spillway
