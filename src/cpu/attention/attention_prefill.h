// SPDX-License-Identifier: Apache-2.0
// Attention of many rows at a time: how prefill is cut into work for a kernel of whole tiles.
#pragma once

#include <span>

#include "base/thread_pool.h"
#include "cpu/attention/attention_args.h"
#include "cpu/attention/attention_kernels.h"
#include "cpu/workspace.h"
#include "device/ops.h"

namespace spillway::cpu {

inline constexpr int32_t kPrefillRows = 8;  // at least

// Whether the span has enough rows. Others are left to the kernels of cuts: keys and values would
// be converted for too few queries.
bool is_prefill(const AttentionArgs& a, const SequenceSpan& span);

// Whether tiles of these rows keep enough of the workers busy. They do not share the keys of a
// tile, as the kernels of cuts do.
bool prefill_pays(const AttentionArgs& a, std::span<const SequenceSpan> spans, int threads);

// `spans` into a.out. Which worker does which tile depends on the shapes alone.
void attend_prefill(ThreadPool& pool, Workspace& workspace, const AttentionArgs& a,
                    AttendRows attend, std::span<const SequenceSpan> spans);

}  // namespace spillway::cpu
