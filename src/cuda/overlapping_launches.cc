// SPDX-License-Identifier: Apache-2.0
#include "cuda/overlapping_launches.h"

#include "cuda/gpu_shape.h"

namespace spillway::cuda {

namespace {
thread_local bool overlap_allowed = false;
}

OverlappingLaunches::OverlappingLaunches(bool allowed) { overlap_allowed = allowed; }
OverlappingLaunches::~OverlappingLaunches() { overlap_allowed = false; }

bool overlapping_launches() {
  static const bool possible = current_gpu().compute_capability >= 90;
  return possible && overlap_allowed;
}

}  // namespace spillway::cuda
