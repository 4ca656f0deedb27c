// SPDX-License-Identifier: Apache-2.0
// Decides whether a run fits into the memory that it may use. The search, greedy placement, plans
// by hand and refusals all use these functions.
#pragma once

#include <cstdint>
#include <string>

#include "plan/footprint.h"

namespace spillway {

// The bytes of each memory that a run may use.
struct Budgets {
  uint64_t device = 0, host = 0, disk = 0;
  // An option limits the host's memory: then mapped weights count. Without a limit they do not,
  // because they are file pages, which the system reclaims if it needs memory.
  bool host_is_limited = false;
  // The part of that limit that is not in `host`: a server's requests and the prediction of lengths
  // use it (ExpectedRun::host_bytes_taken).
  uint64_t host_taken = 0;
};

// Divides memory that the GPU and the host share (integrated GPUs): the host gets what a run needs
// there, and the GPU everything else, because more memory in the host's part gains nothing.
// `device` and `host` are limits from options; 0 is no limit.
Budgets share_one_memory(uint64_t free, uint64_t device, uint64_t host);
// Returns " beside 25 MiB for requests and predicting lengths", or an empty text. A message about
// host memory ends with it.
std::string beside_taken(const Budgets& budgets);

// Says whether the memory counts that kernels and libraries take while they run. It is an estimate,
// and a plan by hand is refused only for memory that is certainly allocated.
enum class Workspaces : uint8_t { kCounted, kLeftOut };

// The peak of each memory that a run takes by its footprint, while the model is loaded or while it
// runs. Mapped weights count if the host's memory is limited.
struct MemoryNeeds {
  uint64_t device = 0;  // 0 if the host computes
  uint64_t host = 0, disk = 0;
};
MemoryNeeds most_needed(const Footprint& needs, bool has_device, bool host_is_limited,
                        Workspaces workspaces = Workspaces::kCounted);

// The room on the device that is needed for KV that is copied there for attention. With less, the
// CPU computes the attention of prompts.
enum class KvStaging : uint8_t {
  kWholeSequences,  // one sequence and the new tokens of a micro-batch
  kPartitioned,     // a partition of a sequence is enough if that is less
};

// Says which memories are large enough for a run.
struct MemoryFit {
  bool device = false, host = false, disk = false;
  bool staging = false;  // KV has room on the device, as KvStaging requires
  // The memory of the processor that computes: the device's or, without one, the host's. It also
  // needs room for KV staging.
  bool computing = false;

  bool fits() const { return device && host && disk && staging; }
};
MemoryFit fit_of(const Footprint& needs, bool has_device, const Budgets& budgets,
                 KvStaging staging = KvStaging::kWholeSequences,
                 Workspaces workspaces = Workspaces::kCounted);

// Computes what plans need and whether they fit, for one model and one set of budgets. Keeps a
// reference to the weights, which must outlive it.
class MemoryCheck {
 public:
  MemoryCheck(PlacedWeights& weights, const DeviceTraits& traits, const Budgets& budgets)
      : weights_(weights), traits_(traits), budgets_(budgets) {}

  const Budgets& budgets() const { return budgets_; }
  // Returns a check that differs only in the budget of the memory that computes.
  MemoryCheck with_first_budget(uint64_t bytes) const {
    DeviceTraits traits = traits_;
    traits.memory_bytes = bytes;
    Budgets budgets = budgets_;
    (has_device() ? budgets.device : budgets.host) = bytes;
    return {weights_, traits, budgets};
  }
  bool has_device() const { return !traits_.host_visible; }
  Footprint needs(const Plan& plan, const RunSize& size) const {
    return footprint(weights_, plan, size, traits_);
  }
  MemoryFit fit(const Footprint& needs, KvStaging staging = KvStaging::kWholeSequences) const {
    return fit_of(needs, has_device(), budgets_, staging);
  }

 private:
  PlacedWeights& weights_;
  const DeviceTraits traits_;
  const Budgets budgets_;
};

// Throws kOutOfMemory if a memory is too small for what is allocated there (without workspaces, and
// with any room for staging). The message is one line that lists each such memory with what needs
// how much of it. Throws kInvalidArgument if something is to be on disk and --disk-memory is 0.
void require_fit(const Footprint& needs, bool has_device, const Budgets& budgets);

}  // namespace spillway
