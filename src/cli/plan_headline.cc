// SPDX-License-Identifier: Apache-2.0
#include "cli/plan_headline.h"

#include <fmt/format.h>

#include <string_view>
#include <utility>
#include <vector>

#include "base/byte_units.h"
#include "base/plain_numbers.h"
#include "plan/memory_fit.h"
#include "plan/weight_homes.h"

namespace spillway {
namespace {

constexpr int kSpeedDigits = 3;

// Returns text such as "a", "a and b", or "a, b and c".
std::string in_words(const std::vector<std::string>& parts) {
  std::string text;
  for (size_t i = 0; i < parts.size(); ++i)
    text += (i == 0 ? "" : i + 1 < parts.size() ? ", " : " and ") + parts[i];
  return text;
}

bool is_within(const MemoryNeeds& needs, const Budgets& budgets) {
  return needs.device <= budgets.device && needs.host <= budgets.host && needs.disk <= budgets.disk;
}

std::string describe_fit(const Planner& planner, const FoundPlan& found) {
  const bool has_device = planner.hardware.has_device();
  const bool host_is_limited = planner.budgets.host_is_limited;
  const Budgets budgets = careful(planner.budgets);
  const MemoryNeeds needs = most_needed(found.needs, has_device, host_is_limited);
  const MemoryNeeds least =
      most_needed(found.needs, has_device, host_is_limited, Workspaces::kLeftOut);
  std::vector<std::string> parts;
  const auto add = [&](uint64_t needed, uint64_t budget, std::string_view memory) {
    if (needed > 0)
      parts.push_back(
          fmt::format("{} of the {} of {}", format_bytes(needed), format_bytes(budget), memory));
  };
  add(needs.device, budgets.device, "GPU memory");
  add(needs.host, budgets.host, "host memory");
  add(needs.disk, budgets.disk, "disk");
  const char* const verdict = is_within(needs, budgets)           ? "It fits"
                              : is_within(least, planner.budgets) ? "It fits only just"
                                                                  : "It does not fit";
  return fmt::format("{}: it needs {}.\n", verdict, in_words(parts));
}

// Returns text such as "all on the GPU" or "31% on the GPU and 69% in host memory".
std::string describe_homes(TierShares of, bool has_device) {
  constexpr double kAll = 0.9995, kOnePercent = 0.005;
  if (!has_device) of.host += std::exchange(of.device, 0);
  std::vector<std::string> parts;
  for (const auto& [share, where] : {std::pair<double, const char*>{of.device, "on the GPU"},
                                     {of.host, "in host memory"},
                                     {of.disk, "on disk"}}) {
    if (share >= kAll) return fmt::format("all {}", where);
    if (share >= kOnePercent) {
      parts.push_back(fmt::format("{:.0f}% {}", share * 100, where));
    } else if (share > 0) {
      parts.push_back(fmt::format("less than 1% {}", where));
    }
  }
  return in_words(parts);
}

double speed_of(const Prediction& p) {
  // Answers of one token have no steps of decode.
  return p.decode_tokens_per_s > 0 ? p.decode_tokens_per_s : p.generated_tokens_per_s;
}

std::string describe_one(const FoundPlan& found) {
  return fmt::format("one request {} tokens/s, its first token after {}",
                     format_number(speed_of(found.predicted), kSpeedDigits),
                     format_seconds(found.predicted.first_token_s));
}

std::string describe_many(const FoundPlan& found, int64_t requests) {
  const double speed = speed_of(found.predicted);
  const int64_t concurrent = found.size.sequences;
  return fmt::format("{}{} together {} tokens/s ({} each), first tokens after {}",
                     format_count(requests, "request"),
                     concurrent < requests ? fmt::format(", {} of them running,", concurrent) : "",
                     format_number(speed, kSpeedDigits),
                     format_number(speed / static_cast<double>(concurrent), kSpeedDigits),
                     format_seconds(found.predicted.first_token_s));
}

std::string describe_estimated_speed(const Planner& planner, const FoundPlan& found,
                                     const std::optional<FoundPlan>& many) {
  const int64_t requests = planner.workload.requests();
  std::string text = requests == 1 ? describe_one(found) : describe_many(found, requests);
  if (many && many->size.sequences > 1) text += "; " + describe_many(*many, many->size.sequences);
  return fmt::format("Estimated speed: {}.\n", text);
}

}  // namespace

std::string plan_headline(const Planner& planner, const FoundPlan& found,
                          const std::optional<FoundPlan>& many) {
  const bool has_device = planner.hardware.has_device();
  return describe_fit(planner, found) +
         fmt::format(
             "Weights: {}. KV cache: {}.\n",
             describe_homes(placed_shares(planner.model, planner.homes(found.plan), has_device),
                            has_device),
             describe_homes(found.plan.kv, has_device)) +
         describe_estimated_speed(planner, found, many);
}

}  // namespace spillway
