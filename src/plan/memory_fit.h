// SPDX-License-Identifier: Apache-2.0
// Whether a run fits into the memory that it may use. Searches, greedy placement, plans by hand and
// refusals all ask these functions.
#pragma once

#include <cstdint>
#include <string>

#include "plan/footprint.h"

namespace spillway {

// The bytes of each memory that a run may use.
struct Budgets {
  uint64_t device = 0, host = 0, disk = 0;
  // Somebody limited the host's memory: then mapped weights count as such. Without a limit they do
  // not, because they are pages of files, which the system takes back where it needs room.
  bool host_is_limited = false;
  // The part of that limit that is not in `host`: a server's requests and the prediction of lengths
  // use it (ExpectedRun::host_bytes_taken).
  uint64_t host_taken = 0;
};

// Divides a memory that the GPU and the host have together (integrated GPUs): the host gets what a
// run needs there, and the GPU all else, because nothing is gained by keeping more in the host's
// part. `device` and `host` are limits that somebody gave; 0 is no limit.
Budgets share_one_memory(uint64_t free, uint64_t device, uint64_t host);
// " beside 25 MiB for requests and predicting lengths", or nothing: a message on host memory ends
// with it.
std::string beside_taken(const Budgets& budgets);

// Whether the memory that kernels and libraries take while they run counts. It is an estimate, and
// a plan by hand is refused only for what is allocated.
enum class Workspaces : uint8_t { kCounted, kLeftOut };

// The most that a run takes of each memory, by its footprint: while it is loaded or while it runs.
// Mapped weights count where the host's memory is limited.
struct MemoryNeeds {
  uint64_t device = 0;  // 0 where the host computes
  uint64_t host = 0, disk = 0;
};
MemoryNeeds most_needed(const Footprint& needs, bool has_device, bool host_is_limited,
                        Workspaces workspaces = Workspaces::kCounted);

// How much of the device must be left for KV that comes there to be attended to. With less, prompts
// are attended to on the CPU.
enum class KvStaging : uint8_t {
  kWholeSequences,  // one sequence and what a micro-batch appends
  kParts,           // a part of a sequence is enough where that is less
};

// Which memories hold a run.
struct MemoryFit {
  bool device = false, host = false, disk = false;
  bool staging = false;  // KV finds room on the device, as KvStaging says
  // The memory that computes: the device's or, without one, the host's. Its staging counts.
  bool computing = false;

  bool fits() const { return device && host && disk && staging; }
};
MemoryFit fit_of(const Footprint& needs, bool has_device, const Budgets& budgets,
                 KvStaging staging = KvStaging::kWholeSequences,
                 Workspaces workspaces = Workspaces::kCounted);

// Answers for one model and one set of budgets what plans need and whether they fit. Refers to the
// weights, which must outlive it.
class MemoryCheck {
 public:
  MemoryCheck(PlacedWeights& weights, const DeviceTraits& traits, const Budgets& budgets)
      : weights_(weights), traits_(traits), budgets_(budgets) {}

  const Budgets& budgets() const { return budgets_; }
  // Returns the same with so many bytes of the memory that computes.
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

// Throws kOutOfMemory where a memory does not hold what is allocated there (workspaces left out,
// and whatever room for staging there is), in one line that says of each such memory what needs how
// much of it; kInvalidArgument where something is to be on disk and --disk-memory is 0.
void require_fit(const Footprint& needs, bool has_device, const Budgets& budgets);

}  // namespace spillway
