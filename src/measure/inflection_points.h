// SPDX-License-Identifier: Apache-2.0
// The decision flow of FlashDecoding++, section 5: with how many tokens the next kind of kernel
// becomes the faster one.
#pragma once

#include <functional>
#include <span>

#include "device/tuning.h"

namespace spillway {

// Seconds that two kinds of kernel take for the same product.
struct KernelTimes {
  double first;
  double second;
};
using CompareKernels = std::function<KernelTimes(LinearKernel first, LinearKernel second, int m)>;

// The numbers of tokens that are compared at, in ascending order; the search stops when it knows.
std::span<const int> compared_tokens();

// M1 and M2 of one shape. A kind of kernel takes over where it is faster by more than the noise at
// one number of tokens and the next, so that one disturbed measurement decides nothing; between two
// of them the crossing is interpolated. A kind that does not win by the last never takes over.
InflectionPoints find_inflection_points(const CompareKernels& compare, bool has_gemm);

}  // namespace spillway
