// SPDX-License-Identifier: Apache-2.0
// Clears, merges and finishes softmax states.
#pragma once

#include "base/thread_pool.h"
#include "device/attention_parts.h"

namespace spillway::cpu {

// These implement the functions of AttentionParts.
void clear_sums(ThreadPool& pool, const AttentionSums& sums);
void add_sums(ThreadPool& pool, const AttentionSums& seen, const AttentionSums& sums);
void finish_sums(ThreadPool& pool, const AttentionSums& sums, const Activations& out);

}  // namespace spillway::cpu
