// SPDX-License-Identifier: Apache-2.0
#include "cli/plan_report.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/byte_units.h"
#include "base/plain_numbers.h"
#include "cli/plan_headline.h"
#include "cli/predicted_json.h"
#include "cli/terminal.h"
#include "engine/model_catalog.h"
#include "plan/weight_homes.h"

namespace spillway {

using nlohmann::json;

namespace {

json memory_json(const Planner& planner, const FoundPlan& found) {
  const bool discrete = planner.hardware.has_device();
  const Budgets budgets = careful(planner.budgets);
  const MemoryNeeds most = most_needed(found.needs, discrete, budgets.host_is_limited);
  const auto of = [](const MemoryUsage& usage, uint64_t bytes, uint64_t budget, uint64_t besides) {
    json by_tag = json::object();
    for (int tag = 0; tag < kMemoryTagCount; ++tag) {
      if (usage.bytes[tag] > 0)
        by_tag[memory_tag_name(static_cast<MemoryTag>(tag))] = usage.bytes[tag];
    }
    if (besides > 0) by_tag[memory_tag_name(MemoryTag::kWorkspace)] = besides;
    return json{{"bytes", bytes},
                {"budget_bytes", budget},
                {"headroom_bytes", static_cast<int64_t>(budget) - static_cast<int64_t>(bytes)},
                {"by_tag", by_tag}};
  };
  const Footprint& needs = found.needs;
  json out;
  if (discrete) out["gpu"] = of(needs.device, most.device, budgets.device, needs.workspace);
  out["host"] = of(needs.of_host(discrete), most.host, budgets.host,
                   discrete ? needs.host_workspace : needs.workspace);
  out["disk"] = of(needs.disk, most.disk, budgets.disk, 0);
  return out;
}

// For sequences whose KV is attended to in partitions: describes how it is placed and how much is
// loaded at a time.
std::string describe_partitions(const RunLayout& layout) {
  if (!layout.partitioned) return "";
  const auto tokens = [](int64_t blocks) { return blocks * kKvBlockTokens; };
  std::string text;
  if (layout.spans()) {
    text = fmt::format("; a sequence has {} tokens on the GPU, {} in host memory, {} on disk",
                       tokens(layout.device_blocks), tokens(layout.host_blocks),
                       tokens(layout.disk_blocks));
  }
  if (layout.staging_blocks > 0 && layout.staging_blocks < layout.sequence_blocks)
    text += fmt::format("; attention reads it in partitions of up to {} tokens",
                        tokens(layout.staging_blocks));
  return text;
}

std::string describe_bottleneck(std::string_view worker) {
  if (worker == "to GPU") return "copies to the GPU";
  if (worker == "to host") return "copies to host memory";
  return std::string(worker);
}

std::string describe_batched(const FoundPlan& found) {
  const int64_t requests = found.size.sequences;
  if (requests == 1) return "more requests together are hardly faster";
  const Prediction& p = found.predicted;
  return fmt::format(
      "{0} such requests together: {1} tokens/s with their prompts' time, first tokens after {2}, "
      "all after {3}; --requests {0} says more",
      requests, format_number(p.generated_tokens_per_s, 4), format_seconds(p.first_token_s),
      format_seconds(p.latency_s));
}

// Returns text such as "computes with 83% of the weights that are not on the GPU, in steps of 1
// token; the rest is copied to the GPU".
std::string describe_cpu_shares(const std::vector<CpuLinearShare>& shares) {
  std::string text = "computes with ";
  for (size_t i = 0; i < shares.size(); ++i) {
    const CpuLinearShare& at = shares[i];
    std::string modules;
    for (const auto& [op, share] : at.modules)
      modules += fmt::format("{}{} {:.0f}%", modules.empty() ? "" : ", ", op, share * 100);
    text += fmt::format("{}{:.0f}%{}{}", i == 0 ? "" : ", with ", at.share * 100,
                        modules.empty() ? "" : fmt::format(" ({})", modules),
                        i == 0 ? " of the weights that are not on the GPU" : "");
    if (at.tokens == 1) {
      text += ", in steps of 1 token";
    } else if (at.tokens != kAnyTokens) {
      text += fmt::format(", in steps of up to {} tokens", at.tokens);
    }
  }
  return text + "; the rest is copied to the GPU";
}

// Returns which processor computes attention over KV in host memory, given the CPU's share of the
// sequences that have it there.
std::string describe_kv_attention(double by_cpu) {
  const std::string percent = fmt::format("{:.0f}%", by_cpu * 100);
  if (percent == "0%") return "the GPU computes attention, with KV copied to it";
  if (percent == "100%") return "the CPU computes attention over KV in host memory";
  return fmt::format(
      "the CPU computes attention for {} of those with KV in host memory, the GPU for the others",
      percent);
}

}  // namespace

std::string describe_workload(const Planner& planner) {
  const Workload& all = planner.workload;
  if (!planner.question.mixed_lengths) {
    const RequestGroup& alike = all.groups.front();
    return fmt::format("{}, {} of {}, {} tokens each", format_count(all.requests(), "request"),
                       all.requests() == 1 ? "a prompt" : "prompts", alike.prompt, alike.generate);
  }
  const auto mean = [&](int64_t tokens) {
    return static_cast<double>(tokens) / static_cast<double>(all.requests());
  };
  return fmt::format("{}, prompts of {:.0f}, {:.0f} tokens each on average",
                     format_count(all.requests(), "request"), mean(all.prompt_tokens()),
                     mean(all.generated_tokens()));
}

void print_plan(const Planner& planner, const PlanReport& report) {
  const FoundPlan& found = report.best;
  print_now(plan_headline(planner, found, report.as_many_as_pay) + "\n");
  const auto line = [](const char* key, const std::string& value) {
    print_now(fmt::format("{:<12}{}\n", key, value));
  };
  const Prediction& p = found.predicted;
  const bool discrete = planner.hardware.has_device();
  const auto shares = [&](const TierShares& of) {
    if (!discrete)
      return fmt::format("{:.1f}% host, {:.1f}% disk", (of.device + of.host) * 100, of.disk * 100);
    return fmt::format("{:.1f}% GPU, {:.1f}% host, {:.1f}% disk", of.device * 100, of.host * 100,
                       of.disk * 100);
  };
  line("machine", fmt::format("{} ({})", planner.hardware.name, planner.machine.how));
  line("model", fmt::format("{}, {} of weights, {} KV", shown_model_name(planner.question.model),
                            format_bytes(static_cast<uint64_t>(planner.model.weight_bytes())),
                            kv_type_name(found.size.kv_type)));
  line("workload", describe_workload(planner));
  const size_t named = found.plan.overrides.size();
  line("weights", shares(placed_shares(planner.model, planner.homes(found.plan), discrete)) +
                      (named > 0 ? "; with the plan's " + format_count(named, "override") : ""));
  if (discrete && !found.plan.cpu_linear.empty())
    line("CPU", describe_cpu_shares(found.plan.cpu_linear));
  line("KV", shares(found.plan.kv) + describe_partitions(found.needs.layout));
  if (found.plan.activations.disk > 0 || (discrete && found.plan.activations.device < 1))
    line("activations", shares(found.plan.activations));
  line(
      "concurrent",
      fmt::format(
          "{}{}{}", format_count(found.size.sequences, "sequence"),
          found.plan.micro_batch > 0 ? fmt::format(", {} in a micro-batch", found.plan.micro_batch)
                                     : "",
          found.plan.kv.host > 0 && discrete ? "; " + describe_kv_attention(p.cpu_attention) : ""));
  line("speed", fmt::format("decode (answers) {} tokens/s, prefill (prompts) {}; {} tokens/s "
                            "over both",
                            format_number(p.decode_tokens_per_s, 4), format_seconds(p.prefill_s),
                            format_number(p.generated_tokens_per_s, 4)));
  line("latency", fmt::format("first tokens after {}, a step {}, all after {}",
                              format_seconds(p.first_token_s), format_seconds(p.step_s),
                              format_seconds(p.latency_s)));
  if (report.as_many_as_pay) line("batched", describe_batched(*report.as_many_as_pay));
  line("bottleneck", describe_bottleneck(p.bottleneck_name()));
  const json memory = memory_json(planner, found);
  for (const auto& [name, of] : memory.items()) {
    if (of["bytes"].get<uint64_t>() == 0) continue;
    line(name == "gpu"    ? "GPU memory"
         : name == "host" ? "host memory"
                          : "disk",
         fmt::format("{} of {}", format_bytes(of["bytes"].get<uint64_t>()),
                     format_bytes(of["budget_bytes"].get<uint64_t>())));
  }
  for (const auto& [what, gain] : report.suggestions)
    line("would help", fmt::format("{}: {:.2f} times as fast", what, gain));
  for (const std::string& warning : report.warnings) line("warning", warning);
}

json plan_report_json(const Planner& planner, const PlanReport& report) {
  const FoundPlan& best = report.best;
  json help = json::array();
  for (const auto& [what, gain] : report.suggestions)
    help.push_back({{"what", what}, {"gain", gain}});
  json out = {{"machine", planner.hardware.name},
              {"machine_source", planner.machine.how},
              {"model", planner.model.spec.name},
              {"plan", json::parse(plan_to_json(planner.complete(best)))},
              {"requests", planner.workload.requests()},
              {"sequences", best.size.sequences},
              {"predicted", predicted_json(best.predicted)},
              {"memory", memory_json(planner, best)},
              {"bottleneck", best.predicted.bottleneck_name()},
              {"would_help", help},
              {"warnings", report.warnings}};
  if (const auto& many = report.as_many_as_pay) {
    out["as_many_as_pay"] = {{"requests", many->size.sequences},
                             {"plan", json::parse(plan_to_json(planner.complete(*many)))},
                             {"predicted", predicted_json(many->predicted)}};
  }
  return out;
}

}  // namespace spillway
