// SPDX-License-Identifier: Apache-2.0
// Reads and writes the keys that most families' files use for sizes and choices, in both formats.
#pragma once

#include <span>

#include "model/transformer_shape.h"
#include "model/weight_slots.h"
#include "storage/tensor_index.h"

namespace spillway {

// `shape` has what a family's files do not say: its name, wiring, norms, MLP and biases. The rest
// is read into it. Both functions throw kInvalidArgument or kUnsupported, naming the key.
//
// Reads GGUF's keys, which begin with the family's name; `rope` is the order of the rows of q and k
// in the file. There are biases, or a separate head, if the file has them.
TransformerShape read_usual_gguf(const ModelFiles& files, std::span<const WeightName> names,
                                 TransformerShape shape, RopeStyle rope);
// Reads config.json, with rotary pairs in halves. Biases that `names` has are switched by
// attention_bias and mlp_bias if the file has these keys.
struct FolderDefaults {
  double rotary_share = 1;       // the share of each head that is rotated
  bool ffn_is_4_times = false;   // the MLP is four times as wide as the residual stream
  int64_t context = 0;           // 0: the file must have it
  int64_t kv_heads = 0;          // 0: as many as heads
  int64_t head_dim = 0;          // 0: the heads divide the residual stream
  double norm_eps = 0;           // 0: 1e-6 for RMS norms, 1e-5 for others
  double rope_theta = 10000;     // the base of the frequencies
  int64_t original_context = 0;  // with LongRoPE; 0: the whole context
};
TransformerShape read_usual_folder(const ModelFiles& files, std::span<const WeightName> names,
                                   TransformerShape shape, const FolderDefaults& defaults = {});
// Writes the keys that read_usual_gguf() reads. Scaling of frequencies is a key with one factor if
// it is the same for all; otherwise it is a tensor of divisors (model/gguf_input.h).
void write_usual_keys(const TransformerShape& shape, Metadata& keys);

}  // namespace spillway
