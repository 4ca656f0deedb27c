// SPDX-License-Identifier: Apache-2.0
// Attention to the largest scores only (FlexGen, section 5).
#pragma once

#include <span>

#include "base/thread_pool.h"
#include "cpu/attention/attention_args.h"
#include "cpu/workspace.h"
#include "device/ops.h"

namespace spillway::cpu {

// Attends spans of one row and writes to a.out; a.q is rotated if the keys are. Each query head
// scores all keys visible to it, and attends to `share` of them (device/sparse_attention.h): of V
// only their entries are read. Returns how many. Codes of quantized values are stored with those of
// their neighbours, so the cache lines that an entry takes part in are those of its page.
//
// Numerics: F32 throughout, in the order of positions, whatever the threads and the batch. Memory
// is proportional to threads times keys times the query heads of a KV head.
int64_t attend_top_k(ThreadPool& pool, Workspace& workspace, const AttentionArgs& a, float share,
                     std::span<const SequenceSpan> spans);

}  // namespace spillway::cpu
