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
// store_kv_reference() does. `faults` is a KvFault's word, set by the first fault if it is 0.
void kv_append(ThreadPool& pool, const Activations& k, const Activations& v, const KvLayerView& kv,
               std::span<const SequenceSpan> spans, std::atomic<uint32_t>& faults);

// Throws kInternal unless every position that a span reads or writes is in a block of `kv`, and its
// rows are in [0, rows).
void check_spans(const KvLayerView& kv, std::span<const SequenceSpan> spans, int64_t rows);

}  // namespace spillway::cpu
