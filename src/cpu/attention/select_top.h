// SPDX-License-Identifier: Apache-2.0
// Finds the positions of the largest scores.
#pragma once

#include <cstdint>

namespace spillway::cpu {

// Sets positions[0, k) to where the k largest of scores[0, n) are, ascending. Of equal scores (0
// and -0 are) the first are taken, and NaN counts as larger than all numbers, so the choice follows
// from the scores alone. 1 <= k <= n. scratch [n].
void select_top(const float* scores, int64_t n, int64_t k, int32_t* positions, uint32_t* scratch);

}  // namespace spillway::cpu
