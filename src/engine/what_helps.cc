// SPDX-License-Identifier: Apache-2.0
#include "engine/what_helps.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

namespace spillway {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;

// The largest number in [least, most] that `holds`, as all below it do; nullopt: none.
std::optional<int64_t> try_largest(int64_t least, int64_t most,
                                   const std::function<bool(int64_t)>& holds) {
  if (least > most || !holds(least)) return std::nullopt;
  while (least < most) {
    const int64_t middle = most - (most - least) / 2;
    if (holds(middle)) {
      least = middle;
    } else {
      most = middle - 1;
    }
  }
  return least;
}

// The least memory in (from, most] with which it fits, in whole MiB, as an option; `taken` of that
// is others'.
std::optional<std::string> try_memory(uint64_t from, uint64_t most,
                                      const std::function<bool(uint64_t)>& fits,
                                      uint64_t taken = 0) {
  const uint64_t others = (taken + kMiB - 1) / kMiB * kMiB;
  const auto last = static_cast<int64_t>((most - std::min(most, others)) / kMiB);
  // Largest first: what fits is at the end.
  const auto spare = try_largest(0, last - static_cast<int64_t>(from / kMiB) - 1, [&](int64_t n) {
    return fits(static_cast<uint64_t>(last - n) * kMiB);
  });
  if (!spare) return std::nullopt;
  return fmt::format("{}MiB", last - *spare + static_cast<int64_t>(others / kMiB));
}

}  // namespace

std::string what_helps(const FitTrial& refused, const FitLimits& limits, const Fits& fits) {
  std::vector<std::string> options;
  FitTrial trial = refused;
  if (limits.shortest_tokens > 0) {
    const auto tokens =
        try_largest(limits.shortest_tokens, refused.size.tokens - 1, [&](int64_t n) {
          trial.size.tokens = n;
          return fits(trial);
        });
    if (tokens) options.push_back(fmt::format("--ctx {}", *tokens));
    trial = refused;
  }
  if (!limits.sequences_option.empty()) {
    const auto sequences = try_largest(1, refused.size.sequences - 1, [&](int64_t n) {
      trial.size.sequences = n;
      return fits(trial);
    });
    if (sequences) options.push_back(fmt::format("{} {}", limits.sequences_option, *sequences));
    trial = refused;
  }
  // The first that is enough: it loses least.
  for (const KvType type : {KvType::kF16, KvType::kInt8, KvType::kInt4}) {
    if (type <= refused.size.kv_type) continue;
    trial.size.kv_type = type;
    if (!fits(trial)) continue;
    options.push_back(fmt::format("--kv-type {}", kv_type_name(type)));
    break;
  }
  trial = refused;
  if (limits.has_device) {
    trial.kv = TierShares{0, 1, 0};
    if (fits(trial)) options.emplace_back("--kv 0,100,0");
    trial = refused;
  }
  trial.kv = TierShares{0, 0, 1};
  if (refused.budgets.disk > 0 && fits(trial)) {
    options.emplace_back("--kv 0,0,100");
  } else if (const auto disk = try_memory(refused.budgets.disk, limits.disk_bytes, [&](uint64_t n) {
               trial.budgets.disk = n;
               return fits(trial);
             })) {
    options.push_back(fmt::format("--kv 0,0,100 with --disk-memory {}", *disk));
  }
  trial = refused;
  trial.compress = true;
  if (limits.compressible && !refused.compress && fits(trial))
    options.emplace_back("--compress-weights");
  trial = refused;
  trial.by_rule = true;
  if (!limits.plan_option.empty() && fits(trial))
    options.push_back(fmt::format("leaving out {}", limits.plan_option));
  const auto memory = [&](const char* option, uint64_t Budgets::*which, uint64_t most,
                          uint64_t taken = 0) {
    trial = refused;
    const auto more_fits = [&](uint64_t n) {
      trial.budgets.*which = n;
      return fits(trial);
    };
    const auto least = try_memory(refused.budgets.*which, most, more_fits, taken);
    if (least) options.push_back(fmt::format("{} {}", option, *least));
  };
  memory("--disk-memory", &Budgets::disk, limits.disk_bytes);
  memory("--host-memory", &Budgets::host, limits.host_bytes, refused.budgets.host_taken);
  memory("--gpu-memory", &Budgets::device, limits.device_bytes);
  if (options.empty()) return "no option by itself makes it fit; use a smaller model";
  if (options.size() == 1) return options.front() + " makes it fit";
  return fmt::format("one of these makes it fit: {}", fmt::join(options, ", "));
}

}  // namespace spillway
