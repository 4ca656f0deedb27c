// SPDX-License-Identifier: Apache-2.0
// Opens whatever the user calls a model.
#pragma once

#include <filesystem>

#include "storage/tensor_index.h"

namespace spillway {

// A GGUF file or a Hugging Face folder; anything else is a kInvalidArgument that says what would
// work.
ModelFiles open_model(const std::filesystem::path& path);
// As open_model(), but a folder may lack config.json and weights.
ModelFiles open_tokenizer(const std::filesystem::path& path);

}  // namespace spillway
