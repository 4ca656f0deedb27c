// SPDX-License-Identifier: Apache-2.0
// Small random networks of every kind the decoder knows, made on the spot.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cpu/cpu_device.h"
#include "engine/loaded_model.h"
#include "memory/transfer_scheduler.h"
#include "model/model.h"
#include "model/transformer_shape.h"
#include "runtime/decoder.h"
#include "runtime/weight_mover.h"

namespace spillway::testing_models {

// "llama" (GQA, rope, gated), "window" (the same with a sliding window), "opt" (pre-norm, learned
// positions, biases), "opt-350m" (post-norm, projections), "llama-tied"; "llama-many-words" and
// "opt-many-words" have heads larger than their layers. With heads of the sizes that real models
// have: "llama-64", "window-64", "opt-64" and "llama-128"; and with rows of whole blocks of every
// quantized type: "llama-64-wide", "opt-64-wide", "llama-128-wide"; "llama-many-rows" has so many
// rows that a GPU's thread blocks take several rounds; "llama-deep", "opt-deep" and "qwen3-deep"
// have nine layers. In "mixed", "mixed-64" and "mixed-deep" every third layer attends to all tokens
// and the others have a window, as in Gemma; in "chunks" these attend to chunks, as in Llama 4, and
// in "chunks-only" all layers do. In "shared" the last three of six layers, of which every third
// attends to all tokens, read the keys and values of an earlier one, as in Gemma 3n; in
// "shared-own" each has its own. "qwen2" has biases on q, k and v, "qwen3" norms their heads;
// "neox" has parallel branches and rotates a quarter of each head; so does "stablelm", whose
// branches share a norm. "gemma3" has norms before and after its branches, scaled embeddings, and
// windows with a rope of their own in most layers; "olmo2" has norms after its branches, and of all
// of q and all of k; "gptj" has one norm for parallel branches and a bias of the head; in "smollm3"
// every second layer rotates nothing.
inline ModelSpec tiny_spec(const std::string& kind, int64_t context = 640) {
  TransformerShape shape;
  shape.name = kind;
  shape.vocab_size = 97;
  shape.hidden = shape.embedding_dim = 64;
  shape.layers = 3;
  shape.heads = 4;
  shape.kv_heads = 2;
  shape.head_dim = 16;
  shape.ffn = 96;
  shape.max_context = context;
  if (kind.ends_with("-64")) {
    shape.heads = 6;
    shape.head_dim = 64;
    shape.hidden = shape.embedding_dim = 384;
    shape.ffn = 1160;
  } else if (kind == "llama-128") {
    shape.heads = shape.kv_heads = 2;
    shape.head_dim = 128;
    shape.hidden = shape.embedding_dim = 264;
    shape.ffn = 2064;
    shape.rope.style = RopeStyle::kInterleaved;
  }
  if (kind.ends_with("-deep")) shape.layers = 9;
  if (kind.starts_with("shared")) {
    shape.layers = 6;
    shape.shared_kv_layers = kind == "shared-own" ? 0 : 3;
  }
  if (kind.ends_with("-many-words")) shape.vocab_size = 1001;
  shape.tied_head = kind == "llama-tied";
  if (kind == "llama-many-rows") {
    shape.heads = 8;
    shape.head_dim = 64;
    shape.hidden = shape.embedding_dim = 512;
    shape.ffn = 9216;
    shape.vocab_size = 17'920;
  }
  if (kind.ends_with("-wide")) {
    const bool large = kind == "llama-128-wide";
    shape.heads = large ? 4 : 8;
    shape.kv_heads = large ? 4 : 2;
    shape.head_dim = large ? 128 : 64;
    shape.hidden = shape.embedding_dim = 512;
    shape.ffn = large ? 2560 : 1280;
    if (large) shape.rope.style = RopeStyle::kInterleaved;
  }
  const bool has_chunks = kind.starts_with("chunk");
  const bool is_mixed = kind.starts_with("mixed") || kind.starts_with("shared");
  const bool has_window = kind.starts_with("window") || is_mixed || has_chunks;
  if (kind.starts_with("llama") || has_window) {
    shape.family = "llama";
    shape.rope.dims = shape.head_dim;
    for (const double f : base_inverse_frequencies(shape.rope))
      shape.rope.inverse_frequencies.push_back(static_cast<float>(f));
    if (has_window) shape.sliding_window = kind.starts_with("window") ? 37 : has_chunks ? 32 : 20;
    shape.chunked_window = has_chunks;
    if (is_mixed || kind == "chunks") shape.full_attention_every = 3;
  } else if (kind.starts_with("qwen")) {
    shape.family = kind.substr(0, kind.find('-'));
    set_plain_rope(shape.rope, 10000, shape.head_dim);
    shape.qkv_bias = kind == "qwen2";
    shape.head_norms = kind.starts_with("qwen3");
  } else if (kind == "stablelm") {
    shape.family = kind;
    shape.wiring = ResidualWiring::kParallel;
    shape.norm = NormKind::kLayer;
    shape.norm_bias = shape.qkv_bias = true;
    set_plain_rope(shape.rope, 10000, shape.head_dim / 4);
  } else if (kind == "gemma3") {
    shape.family = kind;
    shape.wiring = ResidualWiring::kSandwich;
    shape.head_norms = true;
    shape.activation = ActivationKind::kGeluTanh;
    shape.embedding_scale = 8;
    shape.attention_scale = 0.2F;
    shape.sliding_window = 20;
    shape.full_attention_every = 3;
    shape.tied_head = true;
    set_plain_rope(shape.rope, 1e6, shape.head_dim);
    set_plain_rope(shape.local_rope, 10000, shape.head_dim);
  } else if (kind == "olmo2") {
    shape.family = kind;
    shape.wiring = ResidualWiring::kBranchNorm;
    shape.row_norms = true;
    set_plain_rope(shape.rope, 10000, shape.head_dim);
  } else if (kind == "gptj") {
    shape.family = kind;
    shape.kv_heads = shape.heads;
    shape.wiring = ResidualWiring::kParallel;
    shape.norm = NormKind::kLayer;
    shape.norm_bias = shape.mlp_bias = shape.head_bias = true;
    shape.activation = ActivationKind::kGeluTanh;
    shape.gated_mlp = false;
    set_plain_rope(shape.rope, 10000, shape.head_dim / 2);
    shape.rope.style = RopeStyle::kInterleaved;
  } else if (kind == "smollm3") {
    shape.family = kind;
    shape.no_rope_every = 2;
    set_plain_rope(shape.rope, 10000, shape.head_dim);
  } else if (kind == "neox") {
    shape.family = "gptneox";
    shape.kv_heads = shape.heads;
    shape.wiring = ResidualWiring::kParallelTwoNorms;
    shape.norm = NormKind::kLayer;
    shape.norm_bias = shape.qkv_bias = shape.attention_out_bias = shape.mlp_bias = true;
    shape.activation = ActivationKind::kGelu;
    shape.gated_mlp = false;
    set_plain_rope(shape.rope, 10000, shape.head_dim / 4);
  } else {
    shape.family = "opt";
    shape.kv_heads = shape.heads;
    shape.norm = NormKind::kLayer;
    shape.norm_bias = shape.qkv_bias = shape.attention_out_bias = shape.mlp_bias = true;
    shape.position = PositionKind::kLearned;
    shape.position_offset = 2;
    shape.activation = ActivationKind::kRelu;
    shape.gated_mlp = false;
    shape.tied_head = true;
    if (kind == "opt-350m") {
      shape.wiring = ResidualWiring::kPostNorm;
      shape.final_norm = false;
      shape.embedding_dim = 32;
    }
  }
  validate(shape, kind);
  return make_spec(shape);
}

// Matrices in `dtype`; values and down projections of every other layer in `other`, as files of
// mixed types have them.
inline Model tiny_model(const std::string& kind, DType dtype = DType::kF32,
                        std::optional<DType> other = std::nullopt) {
  Model model{tiny_spec(kind), {}};
  for (const WeightSlot& slot : weight_slots(model.spec)) {
    const bool is_mixed =
        slot.layer >= 0 && slot.layer % 2 == 0 && (slot.name == "value" || slot.name == "mlp_down");
    const DType matrix = is_mixed ? other.value_or(dtype) : dtype;
    model.weights.push_back({slot, slot.is_vector() ? DType::kF32 : matrix, std::nullopt});
  }
  return model;
}

// A device with a tiny model on it.
struct TinyRuntime {
  explicit TinyRuntime(const std::string& kind, DType dtype = DType::kF32, int threads = 2)
      : TinyRuntime(std::make_unique<CpuDevice>(CpuDeviceOptions{threads}), kind, dtype) {}
  TinyRuntime(std::unique_ptr<Device> on, const std::string& kind, DType dtype,
              std::optional<DType> other = std::nullopt)
      : owned(std::move(on)),
        device(*owned),
        model(tiny_model(kind, dtype, other)),
        weights(load_weights(device, model, {}, {})) {}

  KvCache make_kv(int32_t blocks, KvType type = KvType::kF32) {
    return KvCache(device, kv_shapes(model.spec.states, type), blocks);
  }
  Decoder make_decoder(int max_tokens) {
    return Decoder(device, model.spec, weights,
                   DecoderOptions{.max_tokens = max_tokens, .transfers = transfers.get()});
  }

  std::unique_ptr<Device> owned;
  Device& device;
  Model model;
  ModelWeights weights;
  std::unique_ptr<TransferScheduler> transfers = std::make_unique<TransferScheduler>(device);
};

// Reproducible ids in [3, vocab).
inline std::vector<int32_t> tiny_prompt(int length, uint32_t seed, int64_t vocab = 97) {
  std::vector<int32_t> ids;
  uint32_t state = seed * 2654435761U + 12345;
  for (int i = 0; i < length; ++i) {
    state = state * 1664525U + 1013904223U;
    ids.push_back(static_cast<int32_t>(3 + (state >> 8) % static_cast<uint32_t>(vocab - 3)));
  }
  return ids;
}

}  // namespace spillway::testing_models
