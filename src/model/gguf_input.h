// SPDX-License-Identifier: Apache-2.0
// A model of any known format as the GGUF file it could be.
#pragma once

#include <string>

#include "storage/gguf_convert.h"
#include "storage/tensor_index.h"

namespace spillway {

// A GGUF is taken as it is. A Hugging Face folder gets GGUF's keys (but for the tokenizer's) and
// names; rows of q and k are reordered where GGUF has rotary pairs side by side, norms, biases and
// tables of positions become F32, and frequencies that are scaled one by one become a tensor.
// Throws what describe_model() throws.
ConvertInput gguf_input(const ModelFiles& files);

// What to know about a GGUF of this model in other programs; empty where there is nothing.
std::string gguf_caveat(const ModelFiles& files);

}  // namespace spillway
