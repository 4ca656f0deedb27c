// SPDX-License-Identifier: Apache-2.0
// Detects Hugging Face folders whose weights are stored in a quantization library's own format.
#pragma once

#include <optional>
#include <string>

#include "storage/tensor_index.h"

namespace spillway {

// Names the method that quantized the weights, for messages ("gptq", "awq", "fp8"): from
// config.json's quantization_config or, if that says nothing, from the names of tensors. nullopt
// for plain weights and for GGUF, whose types are its own.
[[nodiscard]] std::optional<std::string> try_foreign_quantization(const ModelFiles& files);

}  // namespace spillway
