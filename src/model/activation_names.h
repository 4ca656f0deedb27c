// SPDX-License-Identifier: Apache-2.0
// The names that configurations have for activations of an MLP without a gate.
#pragma once

#include <string_view>

#include "storage/tensor_index.h"
#include "tensor/op_kinds.h"

namespace spillway {

// The activation that the files name under `key`, or `otherwise` where they do not have the key.
// Throws kUnsupported for another name.
ActivationKind read_activation(const ModelFiles& files, std::string_view key,
                               std::string_view otherwise);
// The first of the names that read_activation() takes for it.
std::string_view activation_name(ActivationKind kind);

}  // namespace spillway
