// SPDX-License-Identifier: Apache-2.0
#include "plan/fill.h"

#include <algorithm>

#include "base/byte_units.h"
#include "base/error.h"

namespace spillway {
namespace {

// Shares are tried in steps of a thousandth: homes are whole matrices, of which there are hundreds.
constexpr int kSteps = 1000;

struct Filler {
  const Model& model;
  const RunSize& size;
  const DeviceTraits& traits;
  const Budgets& budgets;

  bool has_device() const { return !traits.host_visible; }
  uint64_t first_budget() const { return has_device() ? budgets.device : budgets.host; }
  Footprint of(const Plan& plan) const { return footprint(model, plan, size, traits); }

  // KV that comes to the device takes what the rest leaves of it: a sequence, and what a
  // micro-batch writes, should find room at least.
  static bool can_stage(const RunLayout& layout) {
    const int64_t wanted = blocks_for_tokens(layout.micro_tokens) + layout.sequence_blocks;
    return layout.staging_blocks >= std::min<int64_t>(wanted, layout.host_blocks);
  }
  // Of the memory that computes.
  uint64_t needed_first(const Footprint& needs) const {
    uint64_t bytes =
        needs.device.total() - needs.device.of(MemoryTag::kWorkspace) + needs.workspace;
    if (!has_device()) {
      if (budgets.host_is_limited) bytes += needs.mapped;
      bytes = std::max(
          {bytes, needs.device.peak_bytes, needs.device.of(MemoryTag::kWeights) + needs.loading});
    }
    return bytes;
  }
  bool fits_first(const Plan& plan) const {
    const Footprint needs = of(plan);
    return can_stage(needs.layout) && needed_first(needs) <= first_budget();
  }
  bool fits_host(const Plan& plan) const {
    const Footprint needs = of(plan);
    return std::max(needs.host.peak_bytes, needs.host.of(MemoryTag::kWeights) + needs.loading) <=
           budgets.host;
  }

  // The largest of [0, most] steps for which `fits(steps)`, where fewer fit where more do; below 0
  // where none does. All of it may take less than almost all: nothing streams then.
  template <class Fits>
  static int largest(int most, Fits fits) {
    if (fits(most)) return most;
    int low = -1, high = most - 1;
    while (low < high) {
      const int middle = low + (high - low + 1) / 2;
      if (fits(middle)) {
        low = middle;
      } else {
        high = middle - 1;
      }
    }
    return low;
  }
};

// Of the matrices, thousandths on the device and in host memory; the rest is on disk.
TierShares shares_of(bool has_device, int device, int host) {
  const auto share = [](int steps) { return static_cast<double>(steps) / kSteps; };
  const double disk = share(kSteps - device - host);
  return has_device ? TierShares{share(device), share(host), disk}
                    : TierShares{0, share(device), disk};
}

}  // namespace

Plan fill_from_the_top(const Model& model, const RunSize& size, const DeviceTraits& traits,
                       const Budgets& budgets) {
  const Filler fill{model, size, traits, budgets};
  Plan plan;
  if (fill.fits_first(plan)) return plan;
  const bool apart = fill.has_device();
  const uint64_t kv_bytes = fill.of(plan).device.of(MemoryTag::kKv);
  if (apart && kv_bytes > budgets.device / 4) {
    plan.kv = {0, 1, 0};
    const Footprint needs = fill.of(plan);
    const uint64_t host = needs.host.total() - needs.host.of(MemoryTag::kWeights);
    SPW_CHECK(host <= budgets.host, kOutOfMemory,
              "the KV cache needs {}, more than the {} of host memory", format_bytes(kv_bytes),
              format_bytes(budgets.host));
  }
  const auto with = [&](int device, int host) {
    Plan placed = plan;
    placed.weights = shares_of(apart, device, host);
    return placed;
  };
  int device = Filler::largest(kSteps, [&](int steps) { return fill.fits_first(with(steps, 0)); });
  if (device < 0) {
    const Footprint least = fill.of(with(0, 0));
    fail(ErrorCode::kOutOfMemory,
         "activations, embeddings, workspace{} and room for {} layers to stream through need {} "
         "in all, but there are only {} of {} memory",
         plan.kv.device > 0 ? ", the KV cache" : "", kStreamSlots,
         format_bytes(fill.needed_first(least)), format_bytes(fill.first_budget()),
         apart ? "GPU" : "host");
  }
  const auto fill_host = [&] {
    if (!apart) return 0;
    return std::max(0, Filler::largest(kSteps - device, [&](int steps) {
                      return fill.fits_host(with(device, steps));
                    }));
  };
  int host = fill_host();
  // Between three tiers matrices fall otherwise than between two: a little more may be on the
  // device, and in the layer that streams most.
  while (device > 0 && !fill.fits_first(with(device, host))) {
    --device;
    host = fill_host();
  }
  const Plan placed = with(device, host);
  const uint64_t on_disk = fill.of(placed).disk.of(MemoryTag::kWeights);
  SPW_CHECK(on_disk <= budgets.disk, kOutOfMemory,
            "{} of the weights do not fit into {} of memory, and --disk-memory is {}",
            format_bytes(on_disk), format_bytes(budgets.host + (apart ? budgets.device : 0)),
            format_bytes(budgets.disk));
  return placed;
}

}  // namespace spillway
