// SPDX-License-Identifier: Apache-2.0
// What the attention kernels take: one layer's attention of a step.
#pragma once

#include "cuda/kernel_args.h"

namespace spillway::cuda {

// Causal attention of q over each sequence's KV, appended before. A score that is NaN or infinite
// makes exponents NaN (maxima drop it, exp2 does not), and with them their sum and the row. Head
// dims are multiples of 8 up to 256. KV is any KvType; int4 keys are rotated, the kernels rotate q.
struct AttentionCall {
  Activations q;    // [rows, heads * head_dim]; F16, BF16 or F32
  Activations out;  // the same shape and type
  KvLayerView kv;
  BatchView batch;
  AttentionParams params;
  // Sequences that generate in this step, in this call and in others; 0: any number, and where rows
  // are cut must not depend on it.
  int together = 0;
  // Parts of sequences (device/attention_parts.h): positions that each sequence's table covers, of
  // which its rows see no more. Null: all up to themselves.
  const int32_t* covered = nullptr;
  // Where results go instead of `out`, as AttentionSums has them, if not null: attention_decode()
  // adds them to what is there, attention_prefill() and attention_rows() write them.
  float* sums = nullptr;
  int64_t sums_stride = 0;
  // Where kv.k and kv.v are found (StepTables::planes_of); null: in `kv`. attention_prefill(),
  // which is never recorded, does not look there.
  const KvPlanes* planes = nullptr;
};

// Throws kInternal for shapes or types that the kernels do not take.
void check_attention_call(const AttentionCall& call);

}  // namespace spillway::cuda
