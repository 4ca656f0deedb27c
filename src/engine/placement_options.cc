// SPDX-License-Identifier: Apache-2.0
#include "engine/placement_options.h"

#include <fmt/format.h>

#include <tuple>
#include <utility>

#include "base/byte_units.h"
#include "base/error.h"
#include "base/printable.h"
#include "plan/tier_names.h"

namespace spillway {

uint64_t parse_memory(const std::string& text, const char* option) {
  const auto bytes = try_parse_bytes(text);
  SPW_CHECK(bytes && *bytes >= 0, kInvalidArgument, "{} is '{}'; give a size such as 16GiB", option,
            text);
  return static_cast<uint64_t>(*bytes);
}

std::optional<Plan> PlacementOptions::try_explicit_plan(size_t which) const {
  const bool by_hand =
      !weights.empty() || !embeddings.empty() || !kv.empty() || !activations.empty();
  if (which >= plans.size() && !by_hand) return kept;
  Plan plan = which < plans.size() ? read_plan(plans[which]) : Plan();
  given().apply_to(plan);
  return plan;
}

void PlacementOptions::constrain(PlanRequest& request, size_t which) const {
  request.given = given();
  request.fixed = try_explicit_plan(which);
  request.by_options_alone = plans.empty() && !kept;
  if (kept) request.kept_max_concurrent = kept->max_concurrent.value_or(0);
}

GivenFields PlacementOptions::given() const {
  GivenFields fields;
  if (!weights.empty()) fields.weights = parse_shares(weights, "--weights");
  if (!embeddings.empty()) fields.embeddings = parse_embeddings(embeddings, "--embeddings");
  if (!kv.empty()) fields.kv = parse_shares(kv, "--kv");
  if (!activations.empty()) fields.activations = parse_shares(activations, "--activations");
  if (!schedule.empty()) fields.schedule = parse_schedule(schedule);
  if (!attention.empty()) fields.attention = parse_attention_place(attention);
  if (cpu_attention >= 0) fields.cpu_attention = cpu_attention / 100;
  if (!cpu_linear.empty()) fields.cpu_linear = parse_cpu_linear(cpu_linear, "--cpu-linear");
  if (micro_batch > 0) fields.micro_batch = micro_batch;
  if (micro_batches > 0) fields.micro_batches = micro_batches;
  fields.overlap = !no_overlap;
  return fields;
}

std::string PlacementOptions::plan_options() const {
  std::string all;
  for (const auto& [option, is_given] : {std::pair("--plan", !plans.empty()),
                                         {"--weights", !weights.empty()},
                                         {"--embeddings", !embeddings.empty()},
                                         {"--kv", !kv.empty()},
                                         {"--activations", !activations.empty()}}) {
    if (is_given) all += fmt::format("{}{}", all.empty() ? "" : " and ", option);
  }
  return all;
}

std::vector<std::string> PlacementOptions::without_gpu(const std::string& gpu_memory) const {
  const GivenFields fields = given();
  std::string unused;
  const auto add = [&](bool is_given, const std::string& option) {
    if (is_given) unused += fmt::format("{}{}", unused.empty() ? "" : ", ", option);
  };
  add(!gpu_memory.empty(), "--gpu-memory " + printable(gpu_memory));
  add(fields.attention == AttentionPlace::kGpu, "--attention gpu");
  add(fields.cpu_attention.has_value(), "--cpu-attention");
  add(!cpu_linear.empty(), "--cpu-linear");
  add(!embeddings.empty(), "--embeddings");
  std::vector<std::string> lines;
  if (!unused.empty())
    lines.push_back(fmt::format("there is no GPU to compute on: no effect of {}", unused));
  for (const auto& [option, text, shares] :
       {std::tuple("--weights", &weights, &fields.weights),
        {"--kv", &kv, &fields.kv},
        {"--activations", &activations, &fields.activations}}) {
    if (*shares && (*shares)->device > 0)
      lines.push_back(fmt::format(
          "there is no GPU to compute on: what {} {} has there is in host memory", option, *text));
  }
  return lines;
}

uint64_t PlacementOptions::disk_bytes() const { return parse_memory(disk_memory, "--disk-memory"); }

uint64_t PlacementOptions::pinned_bytes() const {
  return pin_memory.empty() ? ~uint64_t{0} : parse_memory(pin_memory, "--pin-memory");
}

KvExpansion PlacementOptions::expansion() const {
  return parse_kv_expansion(kv_expansion.empty() ? usual_kv_expansion : kv_expansion,
                            "--kv-expansion");
}

void PlacementOptions::take_from(const Plan& plan) {
  if (kv_expansion.empty() && plan.kv_expansion)
    kv_expansion = kv_expansion_text(*plan.kv_expansion);
  if (disk_memory == "0" && plan.memory && plan.memory->disk)
    disk_memory = fmt::format("{}", *plan.memory->disk);
}

std::optional<PlanMemory> PlacementOptions::memory_of_plan(size_t which) const {
  if (which >= plans.size()) return std::nullopt;
  return read_plan(plans[which]).memory;
}

std::filesystem::path PlacementOptions::disk_folder() const {
  if (!disk_dir.empty()) return disk_dir;
  return std::filesystem::temp_directory_path();
}

}  // namespace spillway
