// SPDX-License-Identifier: Apache-2.0
// The ops in double precision, written for clarity: what every device is compared with.
#pragma once

#include <cstdint>
#include <vector>

#include "device/ops.h"

namespace spillway::parity {

using Doubles = std::vector<double>;

// x [tokens, k], w [n, k], bias [n] or empty, start [tokens, n] or empty -> [tokens, n].
Doubles linear_reference(const std::vector<float>& x, const std::vector<float>& w,
                         const std::vector<float>& bias, const std::vector<float>& start,
                         int64_t tokens, int64_t n, int64_t k);

// x [rows, dim]; bias may be empty.
Doubles norm_reference(NormKind kind, const std::vector<float>& x, const std::vector<float>& weight,
                       const std::vector<float>& bias, double eps, int64_t rows, int64_t dim);

double activation_reference(ActivationKind kind, double x);

// x [tokens, heads * head_dim] rotated at `positions`.
Doubles rope_reference(const std::vector<float>& x, const std::vector<int32_t>& positions,
                       const std::vector<float>& inverse_frequency, double scale, int64_t head_dim,
                       RopeStyle style);

// One row at position keys - 1 over all keys: q [heads, head_dim], k and v [keys, kv_heads,
// head_dim] -> [heads, head_dim]. With top_k > 0 only the keys with the largest scores take part:
// that share of the keys seen, rounded up; of equal scores the first. `gaps` gets one value per
// head: the distance between the smallest score that takes part and the largest that does not,
// infinity if all take part.
Doubles attention_reference(const float* q, const std::vector<float>& k,
                            const std::vector<float>& v, int64_t keys, int64_t heads,
                            int64_t kv_heads, int64_t head_dim, double scale, int64_t window,
                            double top_k = 0, Doubles* gaps = nullptr);

}  // namespace spillway::parity
