// SPDX-License-Identifier: Apache-2.0
// Reads the pickle that torch.save() makes of a dictionary of tensors.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>

namespace spillway {

// A class of torch for the elements of a storage.
struct TorchStorageType {
  std::string_view torch_name;  // "HalfStorage"
  std::string_view type;        // as safetensors call it: "F16"
  uint64_t element_bytes = 0;
};

// A tensor as the pickle describes it: a view of a storage, whose bytes are in another member of
// the archive. Nothing is checked against the storage's size.
struct PickledTensor {
  std::string_view name;
  const TorchStorageType* storage_type = nullptr;
  std::string_view storage_key;  // which storage
  uint64_t storage_elements = 0;
  uint64_t offset = 0;  // of the first element in the storage, in elements
  std::span<const uint64_t> shape;
  std::span<const uint64_t> strides;  // in elements; as many as there are dimensions
};

inline constexpr size_t kMaxPickledDims = 8;

// Calls `visit` with each tensor of the dictionary, in its order, also with those of the same name.
// The texts and spans that `visit` gets last as long as the call of it.
//
// A pickle is a program that can run anything. This one is never run: the only opcodes that are
// followed are those that torch.save() needs for tensors (protocol 2), on values that are numbers,
// texts, tuples, dictionaries, storages and tensors, and the only callables are those that make an
// OrderedDict and a tensor of a storage. All else throws kUnsupported and is named in the line. A
// pickle that makes no sense throws kInvalidArgument.
//
// Nothing is recursive, time is linear in the pickle's size, and memory is below 64 MiB.
void read_state_dict(std::string_view pickle, const std::string& label,
                     const std::function<void(const PickledTensor&)>& visit);

}  // namespace spillway
