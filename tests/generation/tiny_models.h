// SPDX-License-Identifier: Apache-2.0
// Small random networks of every kind the decoder knows, made on the spot.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cpu/cpu_device.h"
#include "engine/loaded_model.h"
#include "model/model.h"
#include "runtime/decoder.h"
#include "runtime/weight_mover.h"

namespace spillway::testing_models {

// "llama" (GQA, rope, gated), "window" (the same with a sliding window), "opt" (pre-norm, learned
// positions, biases), "opt-350m" (post-norm, projections), "llama-tied"; "llama-many-words" and
// "opt-many-words" have heads larger than their layers. With heads of the sizes that real models
// have: "llama-64", "window-64", "opt-64" and "llama-128"; and with rows of whole blocks of every
// quantized type: "llama-64-wide", "opt-64-wide", "llama-128-wide"; "llama-many-rows" has so many
// that a GPU's blocks take several rounds; "llama-deep" and "opt-deep" have nine layers.
inline ModelSpec tiny_spec(const std::string& kind) {
  ModelSpec spec;
  spec.name = kind;
  spec.vocab_size = 97;
  spec.hidden = spec.embedding_dim = 64;
  spec.layers = 3;
  spec.heads = 4;
  spec.kv_heads = 2;
  spec.head_dim = 16;
  spec.ffn = 96;
  spec.max_context = 640;
  if (kind.ends_with("-64")) {
    spec.heads = 6;
    spec.head_dim = 64;
    spec.hidden = spec.embedding_dim = 384;
    spec.ffn = 1160;
  } else if (kind == "llama-128") {
    spec.heads = spec.kv_heads = 2;
    spec.head_dim = 128;
    spec.hidden = spec.embedding_dim = 264;
    spec.ffn = 2064;
    spec.rope.style = RopeStyle::kInterleaved;
  }
  if (kind.ends_with("-deep")) spec.layers = 9;
  if (kind.ends_with("-many-words")) spec.vocab_size = 1001;
  spec.tied_head = kind == "llama-tied";
  if (kind == "llama-many-rows") {
    spec.heads = 8;
    spec.head_dim = 64;
    spec.hidden = spec.embedding_dim = 512;
    spec.ffn = 9216;
    spec.vocab_size = 17'920;
  }
  if (kind.ends_with("-wide")) {
    const bool large = kind == "llama-128-wide";
    spec.heads = large ? 4 : 8;
    spec.kv_heads = large ? 4 : 2;
    spec.head_dim = large ? 128 : 64;
    spec.hidden = spec.embedding_dim = 512;
    spec.ffn = large ? 2560 : 1280;
    if (large) spec.rope.style = RopeStyle::kInterleaved;
  }
  if (kind.starts_with("llama") || kind.starts_with("window")) {
    spec.family = "llama";
    spec.rope.dims = spec.head_dim;
    for (const double f : base_inverse_frequencies(spec.rope))
      spec.rope.inverse_frequencies.push_back(static_cast<float>(f));
    spec.sliding_window = kind.starts_with("window") ? 37 : 0;
  } else {
    spec.family = "opt";
    spec.kv_heads = spec.heads;
    spec.norm = NormKind::kLayer;
    spec.norm_bias = spec.qkv_bias = spec.attention_out_bias = spec.mlp_bias = true;
    spec.position = PositionKind::kLearned;
    spec.position_offset = 2;
    spec.activation = ActivationKind::kRelu;
    spec.gated_mlp = false;
    spec.tied_head = true;
    if (kind == "opt-350m") {
      spec.norm_place = NormPlace::kPost;
      spec.final_norm = false;
      spec.embedding_dim = 32;
    }
  }
  validate(spec, kind);
  return spec;
}

// Matrices in `dtype`; values and down projections of every other layer in `other`, as files of
// mixed types have them.
inline Model tiny_model(const std::string& kind, DType dtype = DType::kF32,
                        std::optional<DType> other = std::nullopt) {
  Model model{tiny_spec(kind), {}};
  for (const WeightSlot& slot : weight_slots(model.spec)) {
    const bool is_mixed = slot.layer >= 0 && slot.layer % 2 == 0 &&
                          (slot.role == WeightRole::kValue || slot.role == WeightRole::kDown);
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
    return KvCache(device, {model.spec.layers, model.spec.kv_heads, model.spec.head_dim, type},
                   blocks);
  }
  Decoder make_decoder(int max_tokens) { return Decoder(device, model.spec, weights, max_tokens); }

  std::unique_ptr<Device> owned;
  Device& device;
  Model model;
  ModelWeights weights;
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
