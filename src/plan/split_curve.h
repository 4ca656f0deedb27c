// SPDX-License-Identifier: Apache-2.0
// How long CPU and link take for their parts of a linear op, by the CPU's share of its rows, while
// both are at work: measured on a machine (HeteGen, 4.4).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <utility>

#include "tensor/dtype.h"

namespace spillway {

// The matrices of an op, one below the other.
struct SplitShape {
  DType type = DType::kF16;
  int64_t rows = 0, cols = 0;
  bool operator==(const SplitShape&) const = default;
};

// Seconds of a part that grow with its rows: what it takes however few they are, and all of them.
struct SplitLine {
  double fixed_s = 0, all_s = 0;
  double at(double share) const { return fixed_s + share * all_s; }
  bool operator==(const SplitLine&) const = default;
};

struct SplitCurve {
  SplitShape shape = {};
  int64_t tokens = 1;
  SplitLine cpu = {}, link = {};  // of the CPU's share, and of what is left

  // The share with which both end together (equation 10), within 0 and 1.
  double crossing() const;
  // Of the CPU, while the other is at work.
  double cpu_s(double share) const { return share > 0 ? cpu.at(share) : 0; }
  bool operator==(const SplitCurve&) const = default;
};

// Of seconds by share; at least two different ones. Never below 0, and never falling.
SplitLine fit_line(std::span<const std::pair<double, double>> seconds_by_share);

// Of this shape, for the number of tokens that is the nearest; nothing where it was not measured.
const SplitCurve* try_split_curve(std::span<const SplitCurve> curves, const SplitShape& shape,
                                  double tokens);

}  // namespace spillway
