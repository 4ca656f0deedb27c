// SPDX-License-Identifier: Apache-2.0
// Rotary position embedding: angles are computed once per step, the rotation once per layer.
#pragma once

#include <span>

#include "base/thread_pool.h"
#include "device/ops.h"

namespace spillway::cpu {

// Sets out[i][2 j], out[i][2 j + 1] to the cos and sin of positions[i] * inverse_frequency[j],
// times scale, computed in double precision. out [positions, 2 * frequencies].
void rope_angles(ThreadPool& pool, std::span<const int32_t> positions,
                 std::span<const float> inverse_frequency, float scale, const Activations& out);

// Rotates the first angles.cols elements of each head in place. x [tokens, heads * head_dim].
void rope(ThreadPool& pool, const Activations& x, int head_dim, const Activations& angles,
          RopeStyle style);

}  // namespace spillway::cpu
