// SPDX-License-Identifier: Apache-2.0
// What rows have seen of their sequences so far: beginning, adding up, and the result.
#pragma once

#include "base/thread_pool.h"
#include "device/attention_parts.h"

namespace spillway::cpu {

// See AttentionParts.
void clear_sums(ThreadPool& pool, const AttentionSums& sums);
void add_sums(ThreadPool& pool, const AttentionSums& seen, const AttentionSums& sums);
void finish_sums(ThreadPool& pool, const AttentionSums& sums, const Activations& out);

}  // namespace spillway::cpu
