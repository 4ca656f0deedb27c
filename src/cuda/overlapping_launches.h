// SPDX-License-Identifier: Apache-2.0
// Controls, and tells, whether a kernel may start before the previous one has ended.
#pragma once

namespace spillway::cuda {

// Returns whether launches of this thread overlap (launch.cuh); only from Hopper on.
bool overlapping_launches();
// Allows overlapping for this thread's launches while it lives; otherwise they do not overlap. On
// an H200 steps of one token gain 2%. With several tokens the steps gain whose kernels are made for
// it (linear.h); others lose 4-19%, since waiting thread blocks occupy the place of working ones.
class OverlappingLaunches {
 public:
  explicit OverlappingLaunches(bool allowed);
  ~OverlappingLaunches();
  OverlappingLaunches(const OverlappingLaunches&) = delete;
  OverlappingLaunches& operator=(const OverlappingLaunches&) = delete;
};

}  // namespace spillway::cuda
