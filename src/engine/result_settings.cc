// SPDX-License-Identifier: Apache-2.0
#include "engine/result_settings.h"

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <string_view>

#include "base/digest.h"
#include "device/tuning_text.h"
#include "plan/weight_homes.h"

namespace spillway {

NamedValues ResultSettings::fields() const {
  // A new member stops this from compiling until it has a place here and a name below.
  const auto& [version, processor, same_bits, measured, weights, kv, top_k, on_host, linear] =
      *this;
  return name_fields(
      {"version of spillway", "device", "--deterministic", "--tuning", "set of weight types",
       "--kv-type", "--attention-topk", "division of attention (--kv, --attention)",
       "division of linear layers (the plan's cpu_linear)"},
      version, processor, std::string(same_bits ? "yes" : "no"), measured, weights,
      std::string(kv_type_name(kv)), fmt::format("{}", top_k), on_host, linear);
}

bool may_preempt(float attention_topk, bool deterministic) {
  return attention_topk == 0 || !deterministic;
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
    // Deterministic kernels use none of its points, and only GPUs use scores.
    if (!deterministic) {
      for (const auto& [shape, points] : table->measured()) read.set(shape, points);
    }
    const auto scores = table->try_scores(model);
    if (scores && !device.host_visible()) read.set_scores(model, *scores);
  }
  if (read == TuningTable()) return "none";
  return digest128(tuning_text({{TunedMachine(), read}}));
}

std::string describe_host_linear(const Plan& plan, const Device& device, const Device& host) {
  const bool any =
      std::ranges::any_of(plan.cpu_linear, [](const CpuLinearShare& at) { return at.any(); });
  if (device.host_visible() || !any) return "none";
  std::string shares;
  for (const CpuLinearShare& at : plan.cpu_linear) {
    shares += fmt::format("{}%", at.share * 100);
    for (const auto& [op, share] : at.modules) shares += fmt::format(", {} {}%", op, share * 100);
    shares += fmt::format(" up to {} tokens, ", at.tokens);
  }
  // Which rows these are depends on what is in host memory.
  return fmt::format("{}of what is in host memory by the placement {}, by {}", shares,
                     digest128(weight_placement_text(plan)), describe_device(host));
}

std::string describe_host_attention(const Plan& plan, const Device& device, const Device& host) {
  // A new member of Plan does not compile here until it is added: does a result depend on it? Types
  // and top-k are settings of their own; describe_host_linear() covers cpu_linear, and residence is
  // overrides by now.
  const auto& [weights, overrides, residence, embeddings, kv, activations, micro_batch,
               micro_batches, schedule, attention, cpu_attention, overlap, compress_weights,
               kv_type, attention_topk, context, chunk, sequences, max_concurrent, cpu_linear,
               deterministic, kv_expansion, lookup_drafts, memory, made_for] = plan;
  if (device.host_visible() || kv.host == 0 || attention == AttentionPlace::kGpu) return "none";
  std::string share = "all";
  if (attention == AttentionPlace::kAuto)
    share = cpu_attention ? fmt::format("{}%", *cpu_attention * 100) : "a balanced part";
  return fmt::format("{} of the {}% of sequences in host memory, by {}", share, kv.host * 100,
                     describe_device(host));
}

}  // namespace spillway
