// SPDX-License-Identifier: Apache-2.0
// Detects Hugging Face folders whose weights are stored in a quantization library's own format.
#pragma once

#include <optional>
#include <string>

#include "storage/tensor_index.h"

namespace spillway {

// What quantized the weights, to be read by people ("gptq", "awq", "fp8"): config.json's
// quantization_config, or, where that says nothing, how the tensors are called. nullopt for plain
// weights and for GGUF, whose types are its own.
[[nodiscard]] std::optional<std::string> try_foreign_quantization(const ModelFiles& files);

}  // namespace spillway
