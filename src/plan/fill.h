// SPDX-License-Identifier: Apache-2.0
// The simple rule for where things go when nobody says: fill the fastest memory first. It always
// fits, or says what is missing; finding the best plan is the planner's work.
#pragma once

#include <cstdint>

#include "plan/plan.h"

namespace spillway {

struct FillRequest {
  bool has_device = false;    // memory apart from the host's
  uint64_t device_bytes = 0;  // budgets
  uint64_t host_bytes = 0;
  uint64_t disk_bytes = 0;
  uint64_t matrix_bytes = 0;  // of all layers: what can be placed
  int layers = 1;
  int slots = 2;                  // layers in device memory that stream through
  uint64_t fixed_bytes = 0;       // all else that computing needs where it computes
  uint64_t kv_bytes = 0;          // of all sequences
  uint64_t kv_staging_bytes = 0;  // on the device, if KV is in host memory
  uint64_t host_fixed_bytes = 0;  // staging in host memory beside a device
};

// All on the device if it fits. Otherwise KV goes to host memory if it would take more than a
// quarter of the device, then weights fill what is left of the device, then the host, then the
// disk. Throws kOutOfMemory, saying which memory is too small for what.
Plan fill_from_the_top(const FillRequest& request);

}  // namespace spillway
