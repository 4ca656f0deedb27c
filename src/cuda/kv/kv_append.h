// SPDX-License-Identifier: Apache-2.0
// Applies RoPE and appends the new rows to the KV cache, in one launch.
#pragma once

#include "cuda/kernel_args.h"

namespace spillway::cuda {

struct AppendCall {
  Activations q;  // [rows, heads * head_dim]; rotated in place; may be empty without rope
  Activations k;  // [rows, kv_heads * head_dim]; read only
  Activations v;  // the same. All F16, BF16 or F32, e.g. column ranges of one qkv buffer
  const float* angles = nullptr;  // [rows, rope_dims] (cos, sin) pairs; null: no rope
  int64_t angles_stride = 0;      // elements
  int rope_dims = 0;              // in each head, from its first dim on; even
  RopeStyle style = RopeStyle::kHalves;
  KvLayerView kv;
  const KvPlanes* planes = nullptr;  // where kv.k and kv.v are found; null: in `kv`
  BatchView batch;
  uint32_t* faults = nullptr;  // KvFaults::word
};

// Rotates q in place, and writes rotated keys and plain values to the pages of their sequences: the
// result is bit for bit what store_kv_reference() makes of the same F32 rows. Rows that belong to
// no sequence are left alone. F16 activations at the limit of F16's range have saturated: they are
// treated as NaN, in queries as well. Throws kInternal for shapes or types that it does not
// support.
void rope_and_append(const AppendCall& call, cudaStream_t stream);

}  // namespace spillway::cuda
