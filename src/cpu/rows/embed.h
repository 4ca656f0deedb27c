// SPDX-License-Identifier: Apache-2.0
// Rows of a stored table by id.
#pragma once

#include <span>

#include "base/thread_pool.h"
#include "device/ops.h"

namespace spillway::cpu {

// out[i] = table[ids[i]], or added to out[i]. table [entries, dim] of any type, out [ids, dim].
void embed(ThreadPool& pool, const WeightView& table, std::span<const int32_t> ids,
           const Activations& out, LinearMode mode);

}  // namespace spillway::cpu
