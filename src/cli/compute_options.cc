// SPDX-License-Identifier: Apache-2.0
#include "cli/compute_options.h"

#include <CLI/CLI.hpp>

#include "base/error.h"
#include "base/printable.h"

namespace spillway {

void ComputeOptions::add_compress_weights_to(CLI::App& command) {
  command.add_flag("--compress-weights", compress_weights,
                   "quantize F32, F16 and BF16 matrices to 4 bits (groups of 64) while loading");
}

void ComputeOptions::add_others_to(CLI::App& command) {
  command
      .add_option("--kv-type", kv_type,
                  "KV cache: f32, f16, bf16, int8, int4, or auto (f32 for F32 models, else f16)")
      ->capture_default_str();
  command.add_flag("--compress-kv", compress_kv, "KV cache in 4 bits: --kv-type int4");
  command.add_option(
      "--attention-topk", attention_topk,
      "while generating, attend to this share of the context, such as 0.1: per head the "
      "positions with the largest scores (default: all)");
  command
      .add_option(
          "--chunk", chunk,
          "most tokens in one step; longer prompts are cut (default: 512, on a GPU 2048, or "
          "what there is memory for)")
      ->check(CLI::Range(1, 1 << 20));
}

void ComputeOptions::take_from(const Plan& plan) {
  if (plan.compress_weights.value_or(false)) compress_weights = true;
  if (plan.kv_type && kv_type == "auto" && !compress_kv) kv_type = kv_type_name(*plan.kv_type);
  if (plan.attention_topk && attention_topk == 0) attention_topk = *plan.attention_topk;
  if (plan.chunk && chunk == 0) chunk = *plan.chunk;
}

std::optional<KvType> ComputeOptions::try_kv_type() const {
  const auto type = compress_kv ? KvType::kInt4 : try_kv_type_from_name(kv_type);
  SPW_CHECK(type || kv_type == "auto", kInvalidArgument,
            "--kv-type is '{}'; give f32, f16, bf16, int8, int4 or auto", printable(kv_type));
  SPW_CHECK(!compress_kv || kv_type == "auto" || kv_type == "int4", kInvalidArgument,
            "--compress-kv means --kv-type int4, not {}", printable(kv_type));
  return type;
}

float ComputeOptions::checked_topk() const {
  SPW_CHECK(attention_topk >= 0 && attention_topk <= 1, kInvalidArgument,
            "--attention-topk is {}; give a share of the context up to 1, such as 0.1",
            attention_topk);
  return attention_topk > 0 ? attention_topk : 0;  // never -0
}

}  // namespace spillway
