// SPDX-License-Identifier: Apache-2.0
// Whether a kernel may start before the one in front of it has ended.
#pragma once

namespace spillway::cuda {

// Whether kernels may start before the one in front of them has ended (launch.cuh): from Hopper on.
bool overlapping_launches();
// Allows it for this thread's launches while it lives; otherwise they do not overlap. On an H200
// steps of one token gain 2%; of several, those gain whose kernels are made for it (linear.h), and
// others lose 4-19%, since blocks that wait take the place of blocks that work.
class OverlappingLaunches {
 public:
  explicit OverlappingLaunches(bool allowed);
  ~OverlappingLaunches();
  OverlappingLaunches(const OverlappingLaunches&) = delete;
  OverlappingLaunches& operator=(const OverlappingLaunches&) = delete;
};

}  // namespace spillway::cuda
