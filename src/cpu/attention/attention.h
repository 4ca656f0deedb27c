// SPDX-License-Identifier: Apache-2.0
// Causal attention over paged KV.
#pragma once

#include <span>
#include <vector>

#include "base/thread_pool.h"
#include "cpu/attention/attention_kernels.h"
#include "cpu/workspace.h"
#include "device/attention_parts.h"
#include "device/ops.h"

namespace spillway::cpu {

// q, out [rows, heads * head_dim]; kv as appended before. See Ops::attention.
//
// Numerics: the keys are cut at multiples of 256 positions. Each cut gives, per row and head, an
// unnormalised output with its maximum and sum (AttentionPartial); these are merged in ascending
// order. All of it depends on the row, its position and the window alone, so a token's result is
// the same bits in a prefill chunk of any size, in decode, and for any number of threads. Memory is
// proportional to threads (prefill) or to keys / 256 (decode), never to rows x keys.
//
// The kernel is chosen by the type of KV and by what the processor has. Unless `deterministic`,
// spans of many rows, and three or more queries of a kv head, are given to faster ones where there
// are such kernels (attention_kernels.h): then the above holds for a span's result with the same
// rows only, and the precision is that of bfloat16 or of sums in halves. F32 pages are never
// treated so.
void attention(ThreadPool& pool, Workspace& workspace, const Activations& q, const KvLayerView& kv,
               std::span<const SequenceSpan> spans, const AttentionParams& params,
               const Activations& out, bool deterministic = false);

// See AttentionParts::attend_part. Goes on with the merging of cuts where the parts before have
// left it, so that rows have the bits that attention() gives them (but for int4), by the kernels
// that take any number of rows.
void attend_part(ThreadPool& pool, Workspace& workspace, const Activations& q,
                 const KvLayerView& kv, std::span<const SequenceSpan> spans,
                 const AttentionParams& params, const AttentionSums& sums, bool deterministic);

// A kernel that takes any number of rows cut by cut.
struct CutKernel {
  const char* name;
  AttendSplit attend;
};
// Those of this processor for pages of a type, from worst to best; the first is what every
// processor has. attention() takes the last, and tests compare them all.
std::vector<CutKernel> cut_kernels(KvType type, bool deterministic);
// attention() with one of them.
void attention_by(const CutKernel& kernel, ThreadPool& pool, Workspace& workspace,
                  const Activations& q, const KvLayerView& kv, std::span<const SequenceSpan> spans,
                  const AttentionParams& params, const Activations& out);

}  // namespace spillway::cpu
