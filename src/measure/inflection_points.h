// SPDX-License-Identifier: Apache-2.0
// Finds the number of tokens from which the next kind of kernel is the faster one, by the decision
// flow of FlashDecoding++, section 5.
#pragma once

#include <functional>
#include <span>

#include "device/tuning.h"

namespace spillway {

// The seconds that two kinds of kernel take for the same product.
struct KernelTimes {
  double first;
  double second;
};
using CompareKernels = std::function<KernelTimes(LinearKernel first, LinearKernel second, int m)>;

// Returns the numbers of tokens at which kernels are compared, ascending; the search stops when it
// knows.
std::span<const int> compared_tokens();

// Returns M1 and M2 of one shape. A kind of kernel takes over where it is faster by more than the
// noise at two successive numbers of tokens, so that one disturbed measurement decides nothing; the
// crossing is interpolated between two numbers. A kind that does not win by the last one never
// takes over.
InflectionPoints find_inflection_points(const CompareKernels& compare, bool has_gemm);

}  // namespace spillway
