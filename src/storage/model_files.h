// SPDX-License-Identifier: Apache-2.0
// Opens the path that a user gives as a model.
#pragma once

#include <filesystem>

#include "storage/tensor_index.h"

namespace spillway {

// Opens a GGUF file or a Hugging Face folder. Throws kInvalidArgument for anything else, with a
// message that says what would work.
ModelFiles open_model(const std::filesystem::path& path);
// Opens a model like open_model(), but a folder may lack config.json and weights.
ModelFiles open_tokenizer(const std::filesystem::path& path);

}  // namespace spillway
