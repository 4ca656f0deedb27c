// SPDX-License-Identifier: Apache-2.0
// The arguments of kernel launchers. Every pointer is to device memory unless it says otherwise.
//
// Types of activations on a GPU: the residual stream and logits are F32. The inputs and outputs of
// matrices in between are `half` for F16 and quantized weights, `bfloat16` for BF16 weights, and
// F32 for F32 weights (Activations::dtype). Conversions to F16 saturate: a finite number never
// becomes infinite. Norm weights and biases are F32 on the GPU whatever type the file has.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "device/ops.h"
#include "tensor/op_kinds.h"
#include "tensor/tensor_view.h"

namespace spillway::cuda {

// The operation that a linear layer applies to its sums when it stores them.
enum class Epilogue : uint8_t {
  kStore,       // out = sum + bias
  kAccumulate,  // out += sum + bias; out is F32
  kActivate,    // out = f(sum + bias)
  kGated,       // two parts, gate and up: out[0] = f(gate) * up; the second part's out is unused
};

struct LinearPart {
  WeightView w;                 // [n, k]
  const float* bias = nullptr;  // [n] or null
  Activations out;              // [tokens, n]; dtype and stride are the same in all parts
};

// One launch: up to three matrices of one dtype, layout and k that share their input.
struct LinearCall {
  LinearPart parts[3];
  int count = 1;
  Activations x;  // [tokens, k]
  Epilogue epilogue = Epilogue::kStore;
  ActivationKind activation = ActivationKind::kSilu;  // for kActivate and kGated
};

// The sequences of a step, as kernels see them. Arrays have `sequences` elements.
struct BatchView {
  int sequences = 0;
  const int32_t* first_row = nullptr;  // the sequence's first row in q, k, v, out
  const int32_t* rows = nullptr;  // its tokens in this step, at positions [start, start + rows)
  const int32_t* start = nullptr;
  const int32_t* block_table = nullptr;  // [sequences, table_stride]
  int table_stride = 0;
  // Like block_table: where the block's V is in KvLayerView::home_v; -1: not there. Null if no
  // block's V is.
  const int32_t* home_table = nullptr;
};

// The addresses of a layer's K and V: those given at launch, or those in the step's table, so that
// a recorded launch finds KV that has moved since. Each accessor may be a load, so a thread calls
// it once. Kernels can call this (relaxed constexpr).
struct KvSource {
  KvPlanes given;
  const KvPlanes* table = nullptr;  // null: `given` is used

  constexpr std::byte* k() const { return table == nullptr ? given.k : table->k; }
  constexpr std::byte* v() const { return table == nullptr ? given.v : table->v; }
};

// Memory for the softmax states (max, sum, output) of a step's KV partitions before they are
// merged. In prefill attention it holds counters instead: zeroed when allocated, and zero again
// after each launch.
struct AttentionScratch {
  std::byte* data = nullptr;
  size_t bytes = 0;
};

// The unified maximum of FlashDecoding++, section 3: partitions of a row are computed with
// exp(score - phi), scaled to fill the range of F16, as long as the largest score of every 32
// tokens lies in (phi + low, phi + high). Tokens outside this range use their own largest score
// instead, and the merge of that row takes maxima into account.
struct UnifiedMax {
  bool enabled = false;
  float phi = 0;
  // A row of low scores loses exp(low - high) of F16's range of 40 powers of two: a width of 12
  // leaves it 22.
  float low = -6;
  float high = 6;
};

}  // namespace spillway::cuda
