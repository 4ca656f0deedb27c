// SPDX-License-Identifier: Apache-2.0
#include "model/known_models.h"

#include "model/family.h"

namespace spillway {
namespace {

enum class Kind {
  kOpt,
  kOpt350,
  kLlama1,
  kLlama2,
  kLlama3,
  kLlama31,
  kLlama32,
  kSmolLm2,
  kMistral,
  kMistral01,
  kBloom
};

struct Sizes {
  const char* name;
  Kind kind;
  int layers, hidden, heads, kv_heads, ffn, vocab, context;
};

// The sizes are from the models' published configurations.
constexpr Sizes kSizes[] = {
    {"opt-125m", Kind::kOpt, 12, 768, 12, 12, 3072, 50272, 2048},
    {"opt-350m", Kind::kOpt350, 24, 1024, 16, 16, 4096, 50272, 2048},
    {"opt-1.3b", Kind::kOpt, 24, 2048, 32, 32, 8192, 50272, 2048},
    {"opt-2.7b", Kind::kOpt, 32, 2560, 32, 32, 10240, 50272, 2048},
    {"opt-6.7b", Kind::kOpt, 32, 4096, 32, 32, 16384, 50272, 2048},
    {"opt-13b", Kind::kOpt, 40, 5120, 40, 40, 20480, 50272, 2048},
    {"opt-30b", Kind::kOpt, 48, 7168, 56, 56, 28672, 50272, 2048},
    {"opt-66b", Kind::kOpt, 64, 9216, 72, 72, 36864, 50272, 2048},
    {"opt-175b", Kind::kOpt, 96, 12288, 96, 96, 49152, 50272, 2048},
    {"llama-1-7b", Kind::kLlama1, 32, 4096, 32, 32, 11008, 32000, 2048},
    {"llama-1-13b", Kind::kLlama1, 40, 5120, 40, 40, 13824, 32000, 2048},
    {"llama-1-33b", Kind::kLlama1, 60, 6656, 52, 52, 17920, 32000, 2048},
    {"llama-1-65b", Kind::kLlama1, 80, 8192, 64, 64, 22016, 32000, 2048},
    {"llama-2-7b", Kind::kLlama2, 32, 4096, 32, 32, 11008, 32000, 4096},
    {"llama-2-13b", Kind::kLlama2, 40, 5120, 40, 40, 13824, 32000, 4096},
    {"llama-2-70b", Kind::kLlama2, 80, 8192, 64, 8, 28672, 32000, 4096},
    {"llama-3-8b", Kind::kLlama3, 32, 4096, 32, 8, 14336, 128256, 8192},
    {"llama-3-70b", Kind::kLlama3, 80, 8192, 64, 8, 28672, 128256, 8192},
    {"llama-3.1-8b", Kind::kLlama31, 32, 4096, 32, 8, 14336, 128256, 131072},
    {"llama-3.1-70b", Kind::kLlama31, 80, 8192, 64, 8, 28672, 128256, 131072},
    {"llama-3.1-405b", Kind::kLlama31, 126, 16384, 128, 8, 53248, 128256, 131072},
    {"llama-3.2-1b", Kind::kLlama32, 16, 2048, 32, 8, 8192, 128256, 131072},
    {"llama-3.2-3b", Kind::kLlama32, 28, 3072, 24, 8, 8192, 128256, 131072},
    {"tinyllama-1.1b", Kind::kLlama2, 22, 2048, 32, 4, 5632, 32000, 2048},
    {"mistral-7b-v0.1", Kind::kMistral01, 32, 4096, 32, 8, 14336, 32000, 32768},
    {"mistral-7b", Kind::kMistral, 32, 4096, 32, 8, 14336, 32000, 32768},
    {"smollm2-135m", Kind::kSmolLm2, 30, 576, 9, 3, 1536, 49152, 8192},
    {"bloom-176b", Kind::kBloom, 70, 14336, 112, 112, 57344, 250880, 2048},
};

void set_rope(TransformerShape& shape, double theta, int dims) {
  set_plain_rope(shape.rope, theta, dims);
}

void set_llama3_rope(TransformerShape& shape, double factor) {
  set_rope(shape, 500000, shape.head_dim);
  auto frequencies = base_inverse_frequencies(shape.rope);
  apply_llama3_scaling({.factor = factor}, frequencies);
  shape.rope.inverse_frequencies.assign(frequencies.begin(), frequencies.end());
}

// Sets what OPT and BLOOM share: LayerNorm, biases, no gate.
void set_gpt(TransformerShape& shape, ActivationKind activation) {
  shape.norm = NormKind::kLayer;
  shape.norm_bias = shape.qkv_bias = shape.attention_out_bias = shape.mlp_bias = true;
  shape.activation = activation;
  shape.gated_mlp = false;
  shape.tied_head = true;
}

void set_learned_positions(TransformerShape& shape, int offset) {
  shape.position = PositionKind::kLearned;
  shape.position_offset = offset;
}

void set_kind(TransformerShape& shape, Kind kind) {
  switch (kind) {
    case Kind::kOpt350:
      shape.wiring = ResidualWiring::kPostNorm;
      shape.final_norm = false;
      shape.embedding_dim = 512;
      [[fallthrough]];
    case Kind::kOpt:
      shape.family = "opt";
      set_gpt(shape, ActivationKind::kRelu);
      set_learned_positions(shape, 2);
      return;
    case Kind::kBloom:
      shape.family = "bloom";
      set_gpt(shape, ActivationKind::kGeluTanh);
      shape.position = PositionKind::kAlibi;
      shape.executable = false;
      return;
    case Kind::kLlama1:
      shape.norm_eps = 1e-6F;
      set_rope(shape, 10000, shape.head_dim);
      return;
    case Kind::kMistral01:
      shape.sliding_window = 4096;
      [[fallthrough]];
    case Kind::kLlama2:
    case Kind::kMistral:
      set_rope(shape, 10000, shape.head_dim);
      return;
    case Kind::kSmolLm2:
      set_rope(shape, 100000, shape.head_dim);
      shape.tied_head = true;
      return;
    case Kind::kLlama3:
      set_rope(shape, 500000, shape.head_dim);
      return;
    case Kind::kLlama31:
      set_llama3_rope(shape, 8);
      return;
    case Kind::kLlama32:
      set_llama3_rope(shape, 32);
      shape.tied_head = true;
      return;
  }
}

template <class Known>
TransformerShape shape_of(const Known& known) {
  TransformerShape shape;
  shape.name = known.name;
  shape.layers = known.layers;
  shape.hidden = shape.embedding_dim = known.hidden;
  shape.heads = known.heads;
  shape.kv_heads = known.kv_heads;
  shape.head_dim = known.hidden / known.heads;
  shape.ffn = known.ffn;
  shape.vocab_size = known.vocab;
  shape.max_context = known.context;
  return shape;
}

}  // namespace

std::optional<TransformerShape> try_known_model(std::string_view name) {
  std::optional<TransformerShape> shape;
  for (const Sizes& known : kSizes) {
    if (name != known.name) continue;
    shape = shape_of(known);
    shape->family = "llama";  // unless set_kind() changes it
    set_kind(*shape, known.kind);
  }
  for (const Family* family : families()) {
    for (const KnownSizes& known : family->known) {
      if (name != known.name) continue;
      shape = shape_of(known);
      shape->tied_head = known.tied;
      family->complete(*shape);
    }
  }
  if (shape) validate(*shape, shape->name);
  return shape;
}

std::vector<std::string> known_model_names() {
  std::vector<std::string> names;
  for (const Sizes& known : kSizes) names.emplace_back(known.name);
  for (const Family* family : families()) {
    for (const KnownSizes& known : family->known) names.emplace_back(known.name);
  }
  return names;
}

}  // namespace spillway
