// SPDX-License-Identifier: Apache-2.0
// Describes how long CPU and link take for their parts of a linear op, by the CPU's share of its
// rows, while both are busy: measured on a machine (HeteGen, 4.4).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <utility>

#include "tensor/dtype.h"

namespace spillway {

// The matrices of an op, stacked by rows.
struct SplitShape {
  DType type = DType::kF16;
  int64_t rows = 0, cols = 0;
  bool operator==(const SplitShape&) const = default;
};

// Seconds that grow linearly with a part of the rows: a fixed cost, and the additional time of all
// rows.
struct SplitLine {
  double fixed_s = 0, all_s = 0;
  double at(double share) const { return fixed_s + share * all_s; }
  bool operator==(const SplitLine&) const = default;
};

struct SplitCurve {
  SplitShape shape = {};
  int64_t tokens = 1;
  SplitLine cpu = {}, link = {};  // by the CPU's share, and by the share that is left for the link

  // Returns the share with which both finish together (equation 10), within 0 and 1.
  double crossing() const;
  // Returns the CPU's seconds while the link is busy.
  double cpu_s(double share) const { return share > 0 ? cpu.at(share) : 0; }
  bool operator==(const SplitCurve&) const = default;
};

// Fits a line to pairs of share and seconds, with at least two different shares. The line is never
// below 0 and never falls.
SplitLine fit_line(std::span<const std::pair<double, double>> seconds_by_share);

// Returns the curve of this shape for the nearest number of tokens, or null if none was measured
// near it.
const SplitCurve* try_split_curve(std::span<const SplitCurve> curves, const SplitShape& shape,
                                  double tokens);

}  // namespace spillway
