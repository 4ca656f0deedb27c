// SPDX-License-Identifier: Apache-2.0
// Reads an encoder's config.json. An encoder is a transformer with bidirectional attention.
#pragma once

#include <cstdint>
#include <string>

#include "storage/metadata.h"
#include "tensor/op_kinds.h"

namespace spillway {

enum class EncoderFamily : uint8_t { kBert, kDistilBert };

// Describes an encoder with post-norm layers (norms follow the residual sums), whose matrices all
// have a bias.
struct EncoderSpec {
  EncoderFamily family = EncoderFamily::kBert;
  int64_t layers = 0;
  int64_t width = 0;
  int64_t heads = 0;
  int64_t inner_width = 0;  // width of the feed-forward network
  int64_t vocabulary = 0;
  int64_t positions = 0;
  int64_t token_types = 0;  // 0: no token type embeddings
  ActivationKind activation = ActivationKind::kGelu;
  float norm_eps = 1e-12F;

  int64_t head_dim() const { return width / heads; }
};

// Throws kUnsupported for other architectures and kInvalidArgument for impossible sizes; messages
// begin with `where`, the folder.
EncoderSpec read_encoder_spec(const Metadata& config, const std::string& where);

// Names of the tensors of a layer, and of those outside the layers, without ".weight" and ".bias".
// Matrices are [out, in].
struct EncoderLayerNames {
  std::string query, key, value, attention_out, attention_norm, up, down, out_norm;
};
struct EncoderTableNames {
  std::string tokens, positions, types, norm;
};
EncoderLayerNames encoder_layer_names(EncoderFamily family, int64_t layer);
EncoderTableNames encoder_table_names();
// Returns the prefix of all tensor names in files where the encoder is a part of a larger model.
std::string encoder_prefix(EncoderFamily family);

}  // namespace spillway
