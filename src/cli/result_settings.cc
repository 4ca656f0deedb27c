// SPDX-License-Identifier: Apache-2.0
#include "cli/result_settings.h"

#include <fmt/core.h>

#include <map>
#include <string_view>

#include "device/tuning_text.h"
#include "plan/weight_homes.h"
#include "serve/checksum.h"

namespace spillway {

JobFields ResultSettings::fields() const {
  // A new member stops this from compiling until it has a place here and a name below.
  const auto& [version, processor, same_bits, measured, weights, kv, top_k, on_host, logits_by] =
      *this;
  return name_fields(
      {"version of spillway", "device", "--deterministic", "--tuning", "set of weight types",
       "--kv-type", "--attention-topk", "division of attention (--kv, --attention)",
       "form of the head (--embeddings)"},
      version, processor, std::string(same_bits ? "yes" : "no"), measured, weights,
      std::string(kv_type_name(kv)), fmt::format("{}", top_k), on_host, logits_by);
}

std::string describe_device(const Device& device) {
  return fmt::format("{} ({})", device.info().hardware, device.info().features);
}

std::string describe_weight_types(const Model& model) {
  std::map<std::string_view, int> counts;
  for (const BoundWeight& weight : model.weights) ++counts[dtype_name(weight.dtype)];
  std::string text;
  for (const auto& [name, count] : counts)
    text += fmt::format("{}{} x {}", text.empty() ? "" : ", ", name, count);
  return text;
}

std::string describe_tuning(const TuningTable* table, bool deterministic, const Device& device,
                            const std::string& model) {
  TuningTable read;
  if (table != nullptr) {
    // Deterministic kernels are chosen by none of its points, and only GPUs know of scores.
    if (!deterministic) {
      for (const auto& [shape, points] : table->measured()) read.set(shape, points);
    }
    const auto scores = table->try_scores(model);
    if (scores && !device.host_visible()) read.set_scores(model, *scores);
  }
  if (read == TuningTable()) return "none";
  return checksum128(tuning_text({{TunedMachine(), read}}));
}

std::string describe_head(const Plan& plan, const Device& device, const Model& model) {
  if (device.host_visible() || plan.embeddings == Tier::kDevice) return "whole";
  const size_t pieces = head_pieces(model).size();
  return pieces == 1 ? "whole" : fmt::format("{} pieces", pieces);
}

std::string describe_host_attention(const Plan& plan, const Device& device, const Device& host) {
  // A new member: does a result depend on it? Types and top-k are settings of their own; on
  // embeddings by describe_head() alone.
  const auto& [weights, overrides, embeddings, kv, activations, micro_batch, micro_batches,
               schedule, attention, cpu_attention, overlap, compress_weights, kv_type,
               attention_topk, context, chunk, sequences, cpu_linear, made_for] = plan;
  if (device.host_visible() || kv.host == 0 || attention == AttentionPlace::kGpu) return "none";
  std::string share = "all";
  if (attention == AttentionPlace::kAuto)
    share = cpu_attention ? fmt::format("{}%", *cpu_attention * 100) : "a balanced part";
  return fmt::format("{} of the {}% of sequences in host memory, by {}", share, kv.host * 100,
                     describe_device(host));
}

}  // namespace spillway
