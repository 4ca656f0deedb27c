// SPDX-License-Identifier: Apache-2.0
// The arguments of the attention kernels' launchers: one layer's attention of a step.
#pragma once

#include "cuda/kernel_args.h"

namespace spillway::cuda {

// Causal attention of q over each sequence's KV, which was appended before. A score that is NaN or
// infinite makes its exponential NaN (maxima ignore it, exp2 does not), and with it the sum and the
// row. Head dims are multiples of 8 up to 256. KV is of any KvType; int4 keys are stored rotated,
// and the kernels rotate q.
struct AttentionCall {
  Activations q;    // [rows, heads * head_dim]; F16, BF16 or F32
  Activations out;  // the same shape and type
  KvLayerView kv;
  BatchView batch;
  AttentionParams params;
  // How many rows generate in this step, in this call and in others. 0: the number is unknown, and
  // where rows are split must not depend on it.
  int together = 0;
  // For attention over KV partitions (device/partitioned_attention.h): the positions that each
  // sequence's table covers; its rows attend to none beyond. Null: each row attends to all
  // positions up to its own.
  const int32_t* covered = nullptr;
  // If not null, softmax states (SoftmaxState) are the result instead of `out`: attention_decode()
  // merges into the states that are there, attention_prefill() and attention_rows() overwrite them.
  float* sums = nullptr;
  int64_t sums_stride = 0;
  // The table entry with the addresses kv.k and kv.v (StepTables::planes_of); null: those of `kv`
  // are used. attention_prefill() ignores it, as it is never recorded.
  const KvPlanes* planes = nullptr;
};

// Throws kInternal for shapes or types that the kernels do not support.
void check_attention_call(const AttentionCall& call);

}  // namespace spillway::cuda
