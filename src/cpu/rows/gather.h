// SPDX-License-Identifier: Apache-2.0
// Picks and copies rows of activations.
#pragma once

#include <span>

#include "base/thread_pool.h"
#include "device/ops.h"

namespace spillway::cpu {

// Sets out[i] = x[rows[i]], in out's type: F32, F16 or BF16; if the two types differ, one of them
// is F32. x [any, cols], out [rows, cols].
void gather_rows(ThreadPool& pool, const Activations& x, std::span<const int32_t> rows,
                 const Activations& out);
// Copies all rows in their order.
void copy_rows(ThreadPool& pool, const Activations& x, const Activations& out);

}  // namespace spillway::cpu
