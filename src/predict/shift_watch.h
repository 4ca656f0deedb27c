// SPDX-License-Identifier: Apache-2.0
// Notices when answers become of another kind than those that a predictor learned from.
#pragma once

#include <array>
#include <cstddef>
#include <optional>

#include "predict/length_buckets.h"

namespace spillway {

// Page's cumulative sum test (Biometrika 41, 1954): it compares the predictor with a rival that
// looks at no prompt and only counts the buckets of the last answers. Whenever the rival is behind,
// it starts again with the last answer alone; once it leads by enough, answers have changed since
// it started. A predictor that is merely unsure is behind for some answers, but not for long. Not
// thread-safe.
class ShiftWatch {
 public:
  // Takes an answer's bucket and the share that the predictor gave it before learning from it. If a
  // shift is noticed now, returns how many of the last answers, this one included, are of the new
  // kind.
  [[nodiscard]] std::optional<size_t> try_notice(double share, size_t bucket);

 private:
  size_t begin_again();  // returns how many answers the rival knew

  double lead_ = 0;     // the rival's lead over the predictor, in nats
  size_t answers_ = 0;  // number of answers that the rival counted
  std::array<size_t, kLengthBuckets> in_bucket_ = {};
  size_t not_before_ = 0;  // answers until another shift may be noticed
};

}  // namespace spillway
