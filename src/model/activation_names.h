// SPDX-License-Identifier: Apache-2.0
// Names of activation functions in model configurations, for MLPs without a gate.
#pragma once

#include <string_view>

#include "storage/tensor_index.h"
#include "tensor/op_kinds.h"

namespace spillway {

// Reads the activation named by the files under `key`, or `otherwise` if they lack the key. Throws
// kUnsupported for an unknown name.
ActivationKind read_activation(const ModelFiles& files, std::string_view key,
                               std::string_view otherwise);
// The first of the names that read_activation() accepts for this activation.
std::string_view activation_name(ActivationKind kind);

}  // namespace spillway
