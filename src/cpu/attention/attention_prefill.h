// SPDX-License-Identifier: Apache-2.0
// Attention of many rows together: how prefill is divided into work for a kernel of whole tiles.
#pragma once

#include <span>

#include "base/thread_pool.h"
#include "cpu/attention/attention_args.h"
#include "cpu/attention/attention_kernels.h"
#include "cpu/workspace.h"
#include "device/ops.h"

namespace spillway::cpu {

inline constexpr int32_t kPrefillRows = 8;  // at least this many

// Returns whether the span has enough rows. Others are left to the kernels of cuts, because keys
// and values would be converted for too few queries.
bool is_prefill(const AttentionArgs& a, const SequenceSpan& span);

// Returns whether tiles of these rows keep enough of the workers busy. Workers do not share the
// keys of a tile here, as they do in the kernels of cuts.
bool prefill_pays(const AttentionArgs& a, std::span<const SequenceSpan> spans, int threads);

// Attends `spans` and writes to a.out. Which worker does which tile depends on the shapes alone.
void attend_prefill(ThreadPool& pool, Workspace& workspace, const AttentionArgs& a,
                    AttendRows attend, std::span<const SequenceSpan> spans);

}  // namespace spillway::cpu
