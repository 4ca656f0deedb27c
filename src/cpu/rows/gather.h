// SPDX-License-Identifier: Apache-2.0
// Picks and copies rows of activations.
#pragma once

#include <span>

#include "base/thread_pool.h"
#include "device/ops.h"

namespace spillway::cpu {

// out[i] = x[rows[i]], in its type: F32, F16 or BF16, one of the two F32 where they differ.
// x [any, cols], out [rows, cols].
void gather_rows(ThreadPool& pool, const Activations& x, std::span<const int32_t> rows,
                 const Activations& out);
// All rows, as they are.
void copy_rows(ThreadPool& pool, const Activations& x, const Activations& out);

}  // namespace spillway::cpu
