// SPDX-License-Identifier: Apache-2.0
#include "cuda/kv/qkv_append.cuh"

namespace spillway::cuda {

QkvAppend qkv_append(const AppendCall& append) {
  const KvLayerView& kv = append.kv;
  return {
      .angles = append.angles,
      .interleaved = append.style == RopeStyle::kInterleaved,
      .head_dim = kv.head_dim,
      .kv = {{kv.k, kv.v}, append.planes},
      .block_bytes = kv.block_bytes(),
      .page_bytes = static_cast<int>(KvPageLayout(kv.type, kv.head_dim).bytes),
      .position = append.batch.start,
      .block_table = append.batch.block_table,
      .faults = {append.faults, kv.layer},
  };
}

}  // namespace spillway::cuda
