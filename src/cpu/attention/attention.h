// SPDX-License-Identifier: Apache-2.0
// Causal attention over paged KV.
#pragma once

#include <span>
#include <vector>

#include "base/thread_pool.h"
#include "cpu/attention/attention_kernels.h"
#include "cpu/workspace.h"
#include "device/ops.h"
#include "device/partitioned_attention.h"

namespace spillway::cpu {

// Implements Ops::attention: q, out [rows, heads * head_dim]; kv was appended before.
//
// Numerics: the keys are cut at multiples of 256 positions. Each cut gives, per row and head, an
// unnormalised output with its maximum and sum (AttentionPartial); these are merged in ascending
// order. All of it depends on the row, its position and the window alone, so a token's result has
// the same bits in a prefill chunk of any size, in decode, and for any number of threads. Memory is
// proportional to threads (prefill) or to keys / 256 (decode), never to rows x keys.
//
// The kernel is chosen by the type of KV and by the processor. Unless `deterministic`, spans of
// many rows, and three or more queries of a KV head, go to faster kernels if there are any
// (attention_kernels.h): then the above holds only for a span's result with the same rows, and the
// precision is that of bfloat16 or of sums in halves. F32 pages never go to these.
void attention(ThreadPool& pool, Workspace& workspace, const Activations& q, const KvLayerView& kv,
               std::span<const SequenceSpan> spans, const AttentionParams& params,
               const Activations& out, bool deterministic = false);

// Implements PartitionedAttention::attend_partition. Continues merging cuts where the partitions
// before ended, so that rows have the bits that attention() gives them (except for int4) with the
// kernels that take any number of rows.
void attend_partition(ThreadPool& pool, Workspace& workspace, const Activations& q,
                      const KvLayerView& kv, std::span<const SequenceSpan> spans,
                      const AttentionParams& params, const SoftmaxState& sums, bool deterministic);

// A kernel that takes any number of rows, cut by cut.
struct CutKernel {
  const char* name;
  AttendSplit attend;
};
// Returns this processor's kernels for pages of a type, from worst to best; the first is the one
// that every processor has. attention() takes the last, and tests compare them all.
std::vector<CutKernel> cut_kernels(KvType type, bool deterministic);
// Computes attention() with one of them.
void attention_by(const CutKernel& kernel, ThreadPool& pool, Workspace& workspace,
                  const Activations& q, const KvLayerView& kv, std::span<const SequenceSpan> spans,
                  const AttentionParams& params, const Activations& out);

}  // namespace spillway::cpu
