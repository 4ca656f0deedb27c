// SPDX-License-Identifier: Apache-2.0
// Qwen2 and Qwen2.5, which have biases on q, k and v, and Qwen3, which normalizes the heads of q
// and k instead. Otherwise they are built like Llama.
#include <iterator>
#include <string_view>

#include "base/error.h"
#include "model/family.h"
#include "model/usual_keys.h"

namespace spillway {
namespace {

// The last entries are Qwen3's.
constexpr size_t kOnlyQwen3 = 3;
constexpr WeightName kGgufNames[] = {
    {"token_embedding", "token_embd.weight"},
    {"final_norm", "output_norm.weight"},
    {"head", "output.weight"},
    {"attention_norm", "blk.{}.attn_norm.weight"},
    {"query", "blk.{}.attn_q.weight"},
    {"query.bias", "blk.{}.attn_q.bias"},
    {"key", "blk.{}.attn_k.weight"},
    {"key.bias", "blk.{}.attn_k.bias"},
    {"value", "blk.{}.attn_v.weight"},
    {"value.bias", "blk.{}.attn_v.bias"},
    {"attention_out", "blk.{}.attn_output.weight"},
    {"mlp_norm", "blk.{}.ffn_norm.weight"},
    {"mlp_gate", "blk.{}.ffn_gate.weight"},
    {"mlp_up", "blk.{}.ffn_up.weight"},
    {"mlp_down", "blk.{}.ffn_down.weight"},
    {"attention_out.bias", "blk.{}.attn_output.bias"},
    {"query_norm", "blk.{}.attn_q_norm.weight"},
    {"key_norm", "blk.{}.attn_k_norm.weight"},
};
constexpr WeightName kHuggingFaceNames[] = {
    {"token_embedding", "model.embed_tokens.weight"},
    {"final_norm", "model.norm.weight"},
    {"head", "lm_head.weight"},
    {"attention_norm", "model.layers.{}.input_layernorm.weight"},
    {"query", "model.layers.{}.self_attn.q_proj.weight"},
    {"query.bias", "model.layers.{}.self_attn.q_proj.bias"},
    {"key", "model.layers.{}.self_attn.k_proj.weight"},
    {"key.bias", "model.layers.{}.self_attn.k_proj.bias"},
    {"value", "model.layers.{}.self_attn.v_proj.weight"},
    {"value.bias", "model.layers.{}.self_attn.v_proj.bias"},
    {"attention_out", "model.layers.{}.self_attn.o_proj.weight"},
    {"mlp_norm", "model.layers.{}.post_attention_layernorm.weight"},
    {"mlp_gate", "model.layers.{}.mlp.gate_proj.weight"},
    {"mlp_up", "model.layers.{}.mlp.up_proj.weight"},
    {"mlp_down", "model.layers.{}.mlp.down_proj.weight"},
    {"attention_out.bias", "model.layers.{}.self_attn.o_proj.bias"},
    {"query_norm", "model.layers.{}.self_attn.q_norm.weight"},
    {"key_norm", "model.layers.{}.self_attn.k_norm.weight"},
};

constexpr std::string_view kFamilies[] = {"qwen2", "qwen3"};

std::span<const WeightName> names(const ModelFiles& files) {
  const std::span<const WeightName> all =
      is_gguf(files) ? std::span<const WeightName>(kGgufNames) : kHuggingFaceNames;
  return family_name(files) == "qwen2" ? all.first(all.size() - kOnlyQwen3) : all;
}

TransformerShape read_shape(const ModelFiles& files) {
  TransformerShape shape;
  shape.family = family_name(files);
  shape.head_norms = shape.family == "qwen3";
  if (is_gguf(files)) return read_usual_gguf(files, names(files), shape, RopeStyle::kHalves);
  shape = read_usual_folder(files, names(files), shape);
  if (shape.family == "qwen2") shape.qkv_bias = true;  // config.json does not say this
  // config.json has a window size even if no window is used.
  SPW_CHECK(!files.metadata.try_bool("use_sliding_window").value_or(false), kUnsupported,
            "{}: use_sliding_window, a window in some of the layers, is not supported yet",
            files.name);
  shape.sliding_window = 0;
  return shape;
}

// The sizes are from the published configurations.
constexpr KnownSizes kKnown[] = {
    {"qwen2-0.5b", 24, 896, 14, 2, 4864, 151936, 131072, true},
    {"qwen2-1.5b", 28, 1536, 12, 2, 8960, 151936, 131072, true},
    {"qwen2-7b", 28, 3584, 28, 4, 18944, 152064, 131072, false},
    {"qwen2-72b", 80, 8192, 64, 8, 29568, 152064, 131072, false},
    {"qwen2.5-0.5b", 24, 896, 14, 2, 4864, 151936, 32768, true},
    {"qwen2.5-1.5b", 28, 1536, 12, 2, 8960, 151936, 131072, true},
    {"qwen2.5-3b", 36, 2048, 16, 2, 11008, 151936, 32768, true},
    {"qwen2.5-7b", 28, 3584, 28, 4, 18944, 152064, 131072, false},
    {"qwen2.5-14b", 48, 5120, 40, 8, 13824, 152064, 131072, false},
    {"qwen2.5-32b", 64, 5120, 40, 8, 27648, 152064, 131072, false},
    {"qwen2.5-72b", 80, 8192, 64, 8, 29568, 152064, 131072, false},
    {"qwen3-0.6b", 28, 1024, 16, 8, 3072, 151936, 40960, true},
    {"qwen3-1.7b", 28, 2048, 16, 8, 6144, 151936, 40960, true},
    {"qwen3-4b", 36, 2560, 32, 8, 9728, 151936, 40960, true},
    {"qwen3-8b", 36, 4096, 32, 8, 12288, 151936, 40960, false},
    {"qwen3-14b", 40, 5120, 40, 8, 17408, 151936, 40960, false},
    {"qwen3-32b", 64, 5120, 64, 8, 25600, 151936, 40960, false},
};

void complete(TransformerShape& shape) {
  const bool is_third = shape.name.starts_with("qwen3");
  shape.family = is_third ? "qwen3" : "qwen2";
  shape.qkv_bias = !is_third;
  shape.head_norms = is_third;
  if (is_third) shape.head_dim = 128;
  shape.norm_eps = 1e-6F;
  set_plain_rope(shape.rope, 1e6, shape.head_dim);
}

}  // namespace

const Family kQwenFamily{.gguf_names = kFamilies,
                         .folder_names = kFamilies,
                         .read_shape = read_shape,
                         .names = names,
                         .write_gguf_keys = write_usual_keys,
                         .known = kKnown,
                         .complete = complete};

}  // namespace spillway
