// SPDX-License-Identifier: Apache-2.0
// Looks up rows of a stored table by id.
#pragma once

#include <span>

#include "base/thread_pool.h"
#include "device/ops.h"

namespace spillway::cpu {

// Sets out[i] = table[ids[i]], or adds it to out[i]. table [entries, dim] of any type, out [ids,
// dim].
void embed(ThreadPool& pool, const WeightView& table, std::span<const int32_t> ids,
           const Activations& out, LinearMode mode);

}  // namespace spillway::cpu
