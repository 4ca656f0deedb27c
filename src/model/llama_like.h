// SPDX-License-Identifier: Apache-2.0
// What families that are built like Llama have in common: RMS norms, rope, a gated MLP, and how
// both formats say their sizes.
#pragma once

#include <span>
#include <string>

#include "model/transformer_shape.h"
#include "model/weight_slots.h"
#include "storage/tensor_index.h"

namespace spillway {

// From GGUF's keys, which begin with the architecture: that is the family. Biases, and a head of
// its own, are those that the file has.
TransformerShape read_llama_like_gguf(const ModelFiles& files, std::span<const WeightName> names,
                                      RopeStyle rope);
// From config.json, with rotated halves.
TransformerShape read_llama_like_folder(const ModelFiles& files, const std::string& family);
// The keys that read_llama_like_gguf() reads. Scaling of frequencies is a factor where it is the
// same for all; else it is a tensor of divisors (model/gguf_input.h).
void write_llama_like_keys(const TransformerShape& shape, Metadata& keys);

}  // namespace spillway
