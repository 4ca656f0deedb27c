// SPDX-License-Identifier: Apache-2.0
// The keys by which the files of most families say their sizes and choices, in both formats.
#pragma once

#include <span>

#include "model/transformer_shape.h"
#include "model/weight_slots.h"
#include "storage/tensor_index.h"

namespace spillway {

// `shape` has what a family's files do not say: its name, wiring, norms, MLP and biases. The rest
// is read into it. Both throw kInvalidArgument or kUnsupported, naming the key.
//
// From GGUF's keys, which begin with the family's name; `rope` is the order in which the file has
// the rows of q and k. Biases, and a head of its own, are those that the file has.
TransformerShape read_usual_gguf(const ModelFiles& files, std::span<const WeightName> names,
                                 TransformerShape shape, RopeStyle rope);
// From config.json, with rotated halves. Biases that `names` has are switched by attention_bias and
// mlp_bias where the file has these keys. `rotary_share` is the part of each head that is rotated
// where the file does not say it.
TransformerShape read_usual_folder(const ModelFiles& files, std::span<const WeightName> names,
                                   TransformerShape shape, double rotary_share = 1);
// The keys that read_usual_gguf() reads. Scaling of frequencies is a factor where it is the same
// for all; else it is a tensor of divisors (model/gguf_input.h).
void write_usual_keys(const TransformerShape& shape, Metadata& keys);

}  // namespace spillway
