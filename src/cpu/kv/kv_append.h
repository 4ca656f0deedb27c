// SPDX-License-Identifier: Apache-2.0
// Writes new keys and values into their pages.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>

#include "base/thread_pool.h"
#include "device/ops.h"

namespace spillway::cpu {

// Writes k, v [rows, kv_heads * head_dim] of every span into its blocks, rounded or quantized as
// store_kv_reference() does. The first number beyond the range of the KV type is reported in
// `faults`, as KvFault::word(), unless that holds a fault (is not 0) already.
void kv_append(ThreadPool& pool, const Activations& k, const Activations& v, const KvLayerView& kv,
               std::span<const SequenceSpan> spans, std::atomic<uint32_t>& faults);

// Throws kInternal unless every span's block table has an entry for each of its positions, and its
// rows are in [0, rows).
void check_spans(const KvLayerView& kv, std::span<const SequenceSpan> spans, int64_t rows);

}  // namespace spillway::cpu
