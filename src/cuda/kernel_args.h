// SPDX-License-Identifier: Apache-2.0
// What launchers of kernels take. Every pointer is device memory unless it says otherwise.
//
// Types of activations on a GPU: the residual stream and logits are F32; what goes into and out of
// matrices in between is `half` for F16 and quantized weights, `bfloat16` for BF16 weights, F32 for
// F32 weights (Activations::dtype). Conversions to F16 saturate: no infinity is made from a number.
// Norm weights and biases are F32 on the GPU whatever the file has.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "device/ops.h"
#include "tensor/op_kinds.h"
#include "tensor/tensor_view.h"

namespace spillway::cuda {

// What happens to the sums of a linear layer.
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
  ActivationKind activation = ActivationKind::kSilu;  // of kActivate and kGated
};

// The sequences of a step, as kernels see them. Arrays are of `sequences` elements.
struct BatchView {
  int sequences = 0;
  const int32_t* first_row = nullptr;  // of its rows in q, k, v, out
  const int32_t* rows = nullptr;  // its tokens in this step, at positions [start, start + rows)
  const int32_t* start = nullptr;
  const int32_t* block_table = nullptr;  // [sequences, table_stride]
  int table_stride = 0;
  // As block_table: where V of a block is in KvLayerView::home_v, -1: not there. Null: no V is.
  const int32_t* home_table = nullptr;
};

// A layer's K and V as kernels find them: where the launch says, or where the step's table does, so
// that a recorded launch finds KV that has moved since. That is a load: a thread asks once. For
// kernels (relaxed constexpr).
struct KvSource {
  KvPlanes given;
  const KvPlanes* table = nullptr;  // null: as given

  constexpr std::byte* k() const { return table == nullptr ? given.k : table->k; }
  constexpr std::byte* v() const { return table == nullptr ? given.v : table->v; }
};

// Where attention parts (max, sum, output) of a step go before they are merged. Prefill's has
// counters instead: zeroed once when allocated, and left at zero.
struct AttentionScratch {
  std::byte* data = nullptr;
  size_t bytes = 0;
};

// The unified maximum of FlashDecoding++, section 3: parts of a row are computed with exp(score -
// phi), scaled to fill the range of F16, as long as the largest score of every 32 tokens lies in
// (phi + low, phi + high); the others take their own largest score instead, and the merge of that
// row takes maxima into account.
struct UnifiedMax {
  bool enabled = false;
  float phi = 0;
  // exp(low - high) is what a row of low scores loses of F16's 40 powers of two: 12 leaves it 22.
  float low = -6;
  float high = 6;
};

}  // namespace spillway::cuda
