// SPDX-License-Identifier: Apache-2.0
#include "plan/memory_fit.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/byte_units.h"
#include "base/error.h"

namespace spillway {
namespace {

bool has_staging(const RunLayout& layout, KvStaging staging) {
  const int64_t whole = blocks_for_tokens(layout.micro_tokens) + layout.sequence_blocks;
  const int64_t wanted =
      staging == KvStaging::kPartitioned ? std::min(whole, layout.least_staging()) : whole;
  return layout.staging_blocks >= std::min<int64_t>(wanted, layout.host_blocks);
}

}  // namespace

Budgets share_one_memory(uint64_t free, uint64_t device, uint64_t host) {
  // An estimate of what staging, loading and the CPU's own activations take.
  constexpr uint64_t kLeastHost = uint64_t{512} << 20;
  Budgets budgets{.host_is_limited = host > 0};
  const uint64_t own = std::min(free / 2, std::max(kLeastHost, free / 16));
  budgets.host = host > 0 ? std::min(host, free) : device > 0 ? free - std::min(device, free) : own;
  budgets.device = free - budgets.host;
  if (device > 0) budgets.device = std::min(device, budgets.device);
  return budgets;
}

std::string beside_taken(const Budgets& budgets) {
  if (budgets.host_taken == 0) return {};
  return fmt::format(" beside {} for requests and predicting lengths",
                     format_bytes(budgets.host_taken));
}

MemoryNeeds most_needed(const Footprint& needs, bool has_device, bool host_is_limited,
                        Workspaces workspaces) {
  const MemoryUsage& host = needs.of_host(has_device);
  if (workspaces == Workspaces::kLeftOut) {
    return {.device = has_device ? needs.device.peak_bytes : 0,
            .host = host.peak_bytes + (host_is_limited ? needs.mapped : 0),
            .disk = needs.disk.peak_bytes};
  }
  MemoryNeeds most{.disk = needs.disk.total()};
  const uint64_t computing =
      needs.device.total() - needs.device.of(MemoryTag::kWorkspace) + needs.workspace;
  const uint64_t loading = host.of(MemoryTag::kWeights) + needs.loading;
  if (has_device) {
    most.device = computing;
    most.host = std::max(host.peak_bytes + needs.host_workspace, loading);
  } else {
    const uint64_t mapped = host_is_limited ? needs.mapped : 0;
    most.host = std::max({computing + mapped, host.peak_bytes, loading});
  }
  return most;
}

MemoryFit fit_of(const Footprint& needs, bool has_device, const Budgets& budgets, KvStaging staging,
                 Workspaces workspaces) {
  const MemoryNeeds most = most_needed(needs, has_device, budgets.host_is_limited, workspaces);
  MemoryFit fit{.device = most.device <= budgets.device,
                .host = most.host <= budgets.host,
                .disk = most.disk <= budgets.disk,
                .staging = has_staging(needs.layout, staging)};
  fit.computing = (has_device ? fit.device : fit.host) && fit.staging;
  return fit;
}

void require_fit(const Footprint& needs, bool has_device, const Budgets& budgets) {
  constexpr std::pair<MemoryTag, const char*> kPlaced[] = {
      {MemoryTag::kWeights, "--weights"},
      {MemoryTag::kKv, "--kv"},
      {MemoryTag::kActivations, "--activations"}};
  for (const auto& [tag, option] : kPlaced) {
    SPW_CHECK(budgets.disk > 0 || needs.disk.of(tag) == 0, kInvalidArgument,
              "{} on disk ({}) need {}, but --disk-memory is 0; give it, with --disk-dir",
              memory_tag_name(tag), option, format_bytes(needs.disk.of(tag)));
  }
  std::string missing;
  const auto refuse = [&](bool holds, const MemoryUsage& usage, uint64_t budget, const char* memory,
                          const std::string& beside = "") {
    if (holds) return;
    missing += fmt::format("{}{} of {} ({}), and there are {}{}", missing.empty() ? "" : "; ",
                           format_bytes(usage.peak_bytes), memory, usage.describe(),
                           format_bytes(budget), beside);
  };
  const MemoryFit fit =
      fit_of(needs, has_device, budgets, KvStaging::kWholeSequences, Workspaces::kLeftOut);
  MemoryUsage host = needs.of_host(has_device);
  // Loading may take more than the run does.
  host.add(MemoryTag::kStaging, host.peak_bytes - host.total());
  if (budgets.host_is_limited) host.add(MemoryTag::kWeights, needs.mapped);
  refuse(fit.device, needs.device, budgets.device, "GPU memory");
  refuse(fit.host, host, budgets.host, "host memory", beside_taken(budgets));
  refuse(fit.disk, needs.disk, budgets.disk, "disk");
  SPW_CHECK(missing.empty(), kOutOfMemory, "the plan needs {}", missing);
}

}  // namespace spillway
