// SPDX-License-Identifier: Apache-2.0
#include "plan/greedy_placement.h"

#include <algorithm>
#include <optional>

#include "base/byte_units.h"
#include "base/error.h"
#include "plan/placed_weights.h"

namespace spillway {
namespace {

// Shares are tried in thousandths, because homes are given to whole matrices, of which there are
// hundreds.
constexpr int kSteps = 1000;

struct Filler {
  MemoryCheck memory;
  const RunSize& size;
  // Sequences may be attended to in partitions. This is tried last, as it is slower.
  bool partitioned = false;

  bool has_device() const { return memory.has_device(); }
  const Budgets& budgets() const { return memory.budgets(); }
  uint64_t first_budget() const { return has_device() ? budgets().device : budgets().host; }
  Footprint of(const Plan& plan) const { return memory.needs(plan, size); }

  MemoryFit fit(const Plan& plan) const {
    return memory.fit(of(plan), partitioned ? KvStaging::kPartitioned : KvStaging::kWholeSequences);
  }
  bool fits_first(const Plan& plan) const { return fit(plan).computing; }
  bool fits_host(const Plan& plan) const { return fit(plan).host; }

  // Returns the largest number of steps in [0, most] for which `fits(steps)` is true, or a number
  // below 0 if it is true for none. It must be monotonic, except that `most` may fit where a little
  // less does not: then nothing is streamed.
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

// Returns the shares of the matrices: `device` and `host` are thousandths, and the rest is on disk.
TierShares shares_of(bool has_device, int device, int host) {
  const auto share = [](int steps) { return static_cast<double>(steps) / kSteps; };
  const double disk = share(kSteps - device - host);
  return has_device ? TierShares{share(device), share(host), disk}
                    : TierShares{0, share(device), disk};
}

struct Filling {
  Filler fill;
  Plan plan;  // all of the plan except the weights' shares

  Plan with(int device, int host) const {
    Plan placed = plan;
    placed.weights = shares_of(fill.has_device(), device, host);
    return placed;
  }
  // Returns whether host memory holds everything except the weights.
  bool host_holds_the_rest() const {
    const Footprint needs = fill.of(plan);
    return needs.host.total() - needs.host.of(MemoryTag::kWeights) <= fill.budgets().host;
  }
  // Places KV: a large cache goes to host memory. If that is too small and sequences may be in
  // several memories, the rest goes to the device and to disk. Returns false if there is no room.
  bool place_kv() {
    const uint64_t kv_bytes = fill.of(plan).device.of(MemoryTag::kKv);
    if (fill.has_device()) {
      if (kv_bytes > fill.budgets().device / 4) plan.kv = {0, 1, 0};
      if (plan.kv.host == 0 || host_holds_the_rest()) return true;
    } else if (fits_somehow()) {
      return true;
    }
    return fill.partitioned && try_share_kv();
  }
  bool try_share_kv() {
    const auto share_kv = [&](int device, int host) {
      const auto share = [](int steps) { return static_cast<double>(steps) / kSteps; };
      plan.kv = {share(device), share(host), share(kSteps - device - host)};
    };
    int most_host = 0;
    if (fill.has_device()) {
      most_host = Filler::largest(kSteps - 1, [&](int steps) {
        share_kv(0, steps);
        return host_holds_the_rest();
      });
    }
    // Pages from disk pass through buffers in host memory as well, whose size is known only when
    // the weights have their places.
    for (const double kept : {1.0, 0.95, 0.8, 0.5}) {
      const int host = static_cast<int>(kept * std::max(0, most_host));
      const int device = Filler::largest(kSteps - host, [&](int steps) {
        share_kv(steps, host);
        return fits_somehow();
      });
      if (device < 0) continue;
      share_kv(device, host);
      if (fits_with_weights()) return true;
      if (most_host <= 0) break;
    }
    return false;
  }
  bool fits_with_weights() const {
    const MemoryFit fit = fill.fit(place_weights());
    return fit.disk && fit.computing && fit.host;
  }
  // Returns whether the memory that computes holds everything, or at least what must be there if
  // all weights are on disk.
  bool fits_somehow() const {
    return (fill.fits_first(with(kSteps, 0)) || fill.fits_first(with(0, 0))) &&
           (!fill.has_device() || host_holds_the_rest());
  }

  Plan place_weights() const {
    int device =
        Filler::largest(kSteps, [&](int steps) { return fill.fits_first(with(steps, 0)); });
    const auto fill_host = [&] {
      if (!fill.has_device()) return 0;
      return std::max(0, Filler::largest(kSteps - device, [&](int steps) {
                        return fill.fits_host(with(device, steps));
                      }));
    };
    int host = fill_host();
    // Between three tiers, homes of matrices differ from those between two: slightly more may be on
    // the device, and in the layer that streams the most.
    while (device > 0 && !fill.fits_first(with(device, host))) {
      --device;
      host = fill_host();
    }
    return with(device, host);
  }
};

// Returns plans with less and less on the device, for devices that are too small.
std::vector<Plan> concessions(bool has_device) {
  std::vector<Plan> plans(1);
  if (!has_device) return plans;
  plans.push_back(plans.back());
  plans.back().embeddings = Tier::kHost;
  plans.push_back(plans.back());
  plans.back().kv = {0, 1, 0};
  plans.push_back(plans.back());
  plans.back().activations = {0, 1, 0};
  return plans;
}

// Returns the first placement of everything but the weights for which the memory that computes is
// large enough.
std::optional<Filling> try_filling(const Filler& fill) {
  for (const bool partitioned : {false, true}) {
    if (partitioned && fill.size.whole_sequences) continue;
    for (const Plan& plan : concessions(fill.has_device())) {
      Filling filling{fill, plan};
      filling.fill.partitioned = partitioned;
      if (filling.place_kv() && filling.fits_somehow()) return filling;
    }
  }
  return std::nullopt;
}

// Throws with a message of its own if the cache must be in host memory and does not fit there.
void check_kv_fits(const Filler& fill) {
  if (!fill.has_device()) return;
  Filling filling{fill, Plan{}};
  const uint64_t kv_bytes = fill.of({}).device.of(MemoryTag::kKv);
  filling.plan.kv = {0, 1, 0};
  SPW_CHECK(kv_bytes <= fill.budgets().device / 4 || filling.host_holds_the_rest(), kOutOfMemory,
            "the KV cache needs {}, more than the {} of host memory", format_bytes(kv_bytes),
            format_bytes(fill.budgets().host));
}

// Returns the smallest budget of the memory that computes which would be enough, or nullopt if none
// is.
std::optional<uint64_t> try_smallest_budget(const Filler& refused) {
  const auto fits = [&](uint64_t steps) {
    const MemoryCheck larger = refused.memory.with_first_budget(steps * kBudgetStep);
    return try_filling({.memory = larger, .size = refused.size}).has_value();
  };
  constexpr uint64_t kMostSteps = (uint64_t{1} << 50) / kBudgetStep;
  uint64_t low = refused.first_budget() / kBudgetStep, high = low + 1;
  for (uint64_t width = 1; !fits(high); width *= 2) {
    if (high > kMostSteps) return std::nullopt;
    low = high;
    high += width;
  }
  while (low + 1 < high) {
    const uint64_t middle = (low + high) / 2;
    (fits(middle) ? high : low) = middle;
  }
  return high * kBudgetStep;
}

// Returns the greedy placement without a check of the disk, which may be too small for the rest.
std::optional<Plan> try_fill_memory(const Filler& fill) {
  if (fill.fits_first({})) return Plan{};
  const auto filling = try_filling(fill);
  if (!filling) return std::nullopt;
  return filling->place_weights();
}

bool disk_holds(const Filler& fill, const Plan& placed) {
  return fill.of(placed).disk.of(MemoryTag::kWeights) == 0 || fill.fit(placed).disk;
}

}  // namespace

std::optional<Plan> try_place_greedily(const Model& model, const RunSize& size,
                                       const DeviceTraits& traits, const Budgets& budgets) {
  PlacedWeights weights(model, traits);
  return try_place_greedily(weights, size, traits, budgets);
}

std::optional<Plan> try_place_greedily(PlacedWeights& weights, const RunSize& size,
                                       const DeviceTraits& traits, const Budgets& budgets) {
  const Filler fill{.memory = {weights, traits, budgets}, .size = size};
  auto placed = try_fill_memory(fill);
  if (placed && !disk_holds(fill, *placed)) placed.reset();
  return placed;
}

Plan place_greedily(const Model& model, const RunSize& size, const DeviceTraits& traits,
                    const Budgets& budgets) {
  PlacedWeights weights(model, traits);
  return place_greedily(weights, size, traits, budgets);
}

Plan place_greedily(PlacedWeights& weights, const RunSize& size, const DeviceTraits& traits,
                    const Budgets& budgets) {
  const Filler fill{.memory = {weights, traits, budgets}, .size = size};
  const bool discrete = fill.has_device();
  const auto placed = try_fill_memory(fill);
  if (!placed) {
    check_kv_fits(fill);
    const auto enough = try_smallest_budget(fill);
    fail(ErrorCode::kOutOfMemory,
         "activations, workspace, room for weights to stream through and what else has to be "
         "there need {} of {} memory, but there are only {}{}",
         enough ? format_bytes(*enough) : "more", discrete ? "GPU" : "host",
         format_bytes(fill.first_budget()), discrete ? "" : beside_taken(budgets));
  }
  SPW_CHECK(disk_holds(fill, *placed), kOutOfMemory,
            "{} of the weights do not fit into {} of memory, and --disk-memory is {}",
            format_bytes(fill.of(*placed).disk.of(MemoryTag::kWeights)),
            format_bytes(budgets.host + (discrete ? budgets.device : 0)),
            format_bytes(budgets.disk));
  return *placed;
}

std::vector<RunSize> smaller_runs(const RunSize& wanted, const RunSize& least) {
  const auto halved = [](auto from, auto to) {
    std::vector<decltype(from)> all{from};
    while (all.back() > to) all.push_back(std::max(to, all.back() / 2));
    return all;
  };
  std::vector<RunSize> sizes;
  for (const int64_t tokens : halved(wanted.tokens, least.tokens)) {
    for (const int chunk : halved(wanted.micro_tokens, least.micro_tokens)) {
      for (const int64_t sequences : halved(wanted.sequences, least.sequences)) {
        RunSize& size = sizes.emplace_back(wanted);
        size.tokens = tokens;
        size.micro_tokens = chunk;
        size.sequences = sequences;
      }
    }
  }
  return sizes;
}

int usual_chunk(bool has_device, int64_t tokens) {
  if (!has_device) return 512;
  int chunk = 2048;
  while (chunk < 8192 && chunk * int64_t{32} <= tokens) chunk *= 2;
  return chunk;
}

}  // namespace spillway
