// SPDX-License-Identifier: Apache-2.0
// Describes a model of any known format as the GGUF file that it can be converted to.
#pragma once

#include <string>

#include "storage/gguf_convert.h"
#include "storage/tensor_index.h"

namespace spillway {

// A GGUF is kept as it is. A Hugging Face folder gets GGUF's keys (except the tokenizer's) and
// tensor names. Rows of q and k are reordered if GGUF keeps the two values of a rotary pair
// adjacent. Norms, biases and position tables become F32. If RoPE frequencies have a divisor each,
// the divisors become the tensor rope_freqs.weight. Throws what describe_model() throws.
ConvertInput gguf_input(const ModelFiles& files);

// A note for users about this model's GGUF in other programs; empty if there is nothing to say.
std::string gguf_caveat(const ModelFiles& files);

}  // namespace spillway
