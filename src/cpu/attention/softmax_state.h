// SPDX-License-Identifier: Apache-2.0
// Clears, merges and finishes softmax states.
#pragma once

#include "base/thread_pool.h"
#include "device/partitioned_attention.h"

namespace spillway::cpu {

// These implement the functions of PartitionedAttention.
void clear_state(ThreadPool& pool, const SoftmaxState& sums);
void merge_state(ThreadPool& pool, const SoftmaxState& seen, const SoftmaxState& sums);
void finish_state(ThreadPool& pool, const SoftmaxState& sums, const Activations& out);

}  // namespace spillway::cpu
