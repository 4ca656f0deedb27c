// SPDX-License-Identifier: Apache-2.0
// Notices when answers become of another kind than a predictor knows.
#pragma once

#include <array>
#include <cstddef>
#include <optional>

#include "predict/length_buckets.h"

namespace spillway {

// Page's cumulative sum test (Biometrika 41, 1954): the predictor against a rival that looks at no
// prompt and knows only how often each bucket was right among the last answers. Whenever the rival
// is behind, it begins again, with the last answer alone; once it leads by enough, something has
// changed since then. A predictor that is merely unsure is behind for some answers, not for long.
// Not thread-safe.
class ShiftWatch {
 public:
  // An answer was in this bucket, to which the predictor gave such a share before it learned from
  // it. Where a shift is noticed now: how many of the last answers, this one among them, are of the
  // other kind.
  [[nodiscard]] std::optional<size_t> try_notice(double share, size_t bucket);

 private:
  size_t begin_again();  // with how many it knew

  double lead_ = 0;     // of the rival, in nats
  size_t answers_ = 0;  // that it knows
  std::array<size_t, kLengthBuckets> in_bucket_ = {};
  size_t not_before_ = 0;  // so many answers more another shift is noticed
};

}  // namespace spillway
