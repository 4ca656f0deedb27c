// SPDX-License-Identifier: Apache-2.0
#include "plan/fit_suggestions.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/byte_units.h"

namespace spillway {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;

// Returns the largest number in [least, most] for which `holds` is true, or nullopt if there is
// none. If it is true for a number, it is for all smaller ones.
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

uint64_t whole_mib(uint64_t bytes) { return (bytes + kMiB - 1) / kMiB * kMiB; }

// Writes "612MiB", or large sizes in tenths of a GiB, rounded up.
std::string option_size(uint64_t bytes) {
  const uint64_t mib = whole_mib(bytes) / kMiB;
  if (mib < 10 * 1024) return fmt::format("{}MiB", mib);
  const uint64_t tenths = (mib * 10 + 1023) / 1024;
  return tenths % 10 == 0 ? fmt::format("{}GiB", tenths / 10)
                          : fmt::format("{}.{}GiB", tenths / 10, tenths % 10);
}

// Returns the least memory in (from, most] with which the run fits, exact to a MiB or to a
// thousandth, whichever is more.
std::optional<uint64_t> try_least_memory(uint64_t from, uint64_t most,
                                         const std::function<bool(uint64_t)>& fits) {
  uint64_t low = from / kMiB, high = most / kMiB;
  if (low >= high || !fits(high * kMiB)) return std::nullopt;
  while (high - low > std::max<uint64_t>(1, low / 1024)) {
    const uint64_t middle = low + (high - low) / 2;
    (fits(middle * kMiB) ? high : low) = middle;
  }
  return high * kMiB;
}

// A larger budget is named if it gains this factor; then it is the smallest one with most of the
// best speed.
constexpr double kWorthMore = 1.3, kMostOfIt = 0.9;

// Describes what more memory than the least that works would gain; empty if that is little.
std::string describe_gain(FitTrial trial, uint64_t Budgets::*which, uint64_t least, uint64_t most,
                          uint64_t taken, const FitSpeeds& speeds) {
  if (!speeds.quick || !speeds.planned) return {};
  const auto with = [&](uint64_t bytes) {
    trial.budgets.*which = bytes;
    return trial;
  };
  std::vector<uint64_t> sizes;
  std::vector<double> quick;
  // Tries up to 32 times as much memory, until two doublings together gain less than 5%.
  constexpr int kSizes = 6;
  for (uint64_t bytes = least; bytes <= most && sizes.size() < kSizes; bytes *= 2) {
    sizes.push_back(bytes);
    quick.push_back(speeds.quick(with(bytes)));
    const size_t tried = quick.size();
    if (tried >= 3 && quick[tried - 1] < 1.05 * quick[tried - 3]) break;
  }
  if (sizes.size() < 2) return {};
  const double best = *std::max_element(quick.begin(), quick.end());
  if (best < kWorthMore * quick.front()) return {};
  const auto pays = static_cast<size_t>(
      std::find_if(quick.begin(), quick.end(), [&](double s) { return s >= kMostOfIt * best; }) -
      quick.begin());
  const double slow = speeds.planned(with(least)), fast = speeds.planned(with(sizes[pays]));
  if (slow <= 0 || fast < kWorthMore * slow) return {};
  return fmt::format(" (estimated {:.3g} tokens/s; {} give {:.3g})", slow,
                     option_size(sizes[pays] + taken), fast);
}

}  // namespace

std::string fit_suggestions(const FitTrial& refused, const FitLimits& limits, const Fits& fits,
                            const FitSpeeds& speeds) {
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
  // Names the first type that is small enough, which loses the least precision.
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
  } else if (const auto disk =
                 try_least_memory(refused.budgets.disk, limits.disk_bytes, [&](uint64_t n) {
                   trial.budgets.disk = n;
                   return fits(trial);
                 })) {
    options.push_back(fmt::format("--kv 0,0,100 with --disk-memory {}", option_size(*disk)));
  }
  trial = refused;
  trial.compress = true;
  if (limits.compressible && !refused.compress && fits(trial))
    options.emplace_back("--compress-weights");
  trial = refused;
  trial.greedy = true;
  if (!limits.plan_option.empty() && fits(trial))
    options.push_back(fmt::format("leaving out {}", limits.plan_option));
  const auto memory = [&](const char* option, uint64_t Budgets::*which, uint64_t most,
                          uint64_t taken = 0) {
    FitTrial more = refused;
    uint64_t from = refused.budgets.*which;
    // A plan takes nine tenths of the host memory if no option limits it, but all that an option
    // gives.
    if (which == &Budgets::host && !std::exchange(more.budgets.host_is_limited, true))
      from = from / 10 * 9;
    const auto more_fits = [&](uint64_t n) {
      more.budgets.*which = n;
      return fits(more);
    };
    // Memory that is used for other things is part of the option's value.
    taken = whole_mib(taken);
    const uint64_t left = most - std::min(most, taken);
    const auto least = try_least_memory(from, left, more_fits);
    if (!least) return;
    const uint64_t present = limits.present.*which;
    const bool beyond = present > 0 && *least + taken > present;
    options.push_back(fmt::format(
        "{} {}{}", option, option_size(*least + taken),
        beyond
            ? fmt::format(" ({} has {})", limits.machine, format_bytes(present))
            : describe_gain(more, which, *least,
                            present > 0 ? std::min(left, present - taken) : left, taken, speeds)));
  };
  memory("--disk-memory", &Budgets::disk, limits.disk_bytes);
  memory("--host-memory", &Budgets::host, limits.host_bytes, refused.budgets.host_taken);
  memory("--gpu-memory", &Budgets::device, limits.device_bytes);
  if (options.empty()) return "no option by itself makes it fit; use a smaller model";
  if (options.size() == 1) return options.front() + " makes it fit";
  return fmt::format("one of these makes it fit: {}", fmt::join(options, ", "));
}

}  // namespace spillway
