// SPDX-License-Identifier: Apache-2.0
#include "cuda/linear/linear_params.cuh"

#include "cuda/kv/kv_append.h"
#include "cuda/linear/linear.h"

namespace spillway::cuda {
namespace {

bool is_plain(DType type) {
  return type == DType::kF32 || type == DType::kF16 || type == DType::kBF16;
}

bool is_aligned16(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }

}  // namespace

LinearProblem problem_of(const LinearCall& call) {
  LinearProblem problem;
  problem.dtype = call.parts[0].w.dtype;
  problem.k = call.parts[0].w.cols;
  problem.tokens = call.x.rows;
  problem.gated = call.epilogue == Epilogue::kGated;
  for (int i = 0; i < call.count; ++i) problem.n += call.parts[i].w.whole_rows();
  return problem;
}

LinearParams params_of(const LinearCall& call) {
  const bool gated = call.epilogue == Epilogue::kGated;
  const LinearPart& first = call.parts[0];
  SPW_ASSERT(call.count >= 1 && call.count <= 3 && (!gated || call.count == 2));
  SPW_ASSERT(is_plain(first.w.dtype) && call.x.dtype == first.w.dtype);
  SPW_ASSERT(is_plain(first.out.dtype));
  SPW_ASSERT(call.epilogue != Epilogue::kAccumulate || first.out.dtype == DType::kF32);
  LinearParams p = {};
  p.count = call.count;
  p.k = static_cast<int>(first.w.cols);
  p.tokens = static_cast<int>(call.x.rows);
  p.x = call.x.data;
  p.x_stride = call.x.stride;
  p.out_stride = first.out.stride;
  p.out_type = first.out.dtype;
  p.epilogue = call.epilogue;
  p.activation = call.activation;
  SPW_ASSERT(call.x.cols == p.k && call.x.stride >= p.k && p.k > 0);
  for (int i = 0; i < call.count; ++i) {
    const LinearPart& part = call.parts[i];
    SPW_ASSERT(part.w.dtype == first.w.dtype && part.w.layout == WeightLayout::kRows);
    SPW_ASSERT(part.w.cols == p.k && part.w.rows < (int64_t{1} << 30));
    if (gated && i == 1) {
      SPW_ASSERT(part.w.rows == first.w.rows);
    } else {
      SPW_ASSERT(part.out.dtype == p.out_type && part.out.stride == p.out_stride);
      SPW_ASSERT(part.out.rows == p.tokens && part.out.cols == part.w.rows);
    }
    p.part[i] = {part.w.data, part.bias, part.out.data, static_cast<int>(part.w.rows)};
  }
  return p;
}

LinearCall tokens_of(const LinearCall& call, int64_t first, int64_t count) {
  LinearCall some = call;
  some.x = call.x.row_range(first, count);
  for (int i = 0; i < call.count; ++i) {
    if (call.epilogue == Epilogue::kGated && i == 1) continue;
    some.parts[i].out = call.parts[i].out.row_range(first, count);
  }
  return some;
}

bool is_vector_aligned(const LinearCall& call) {
  bool aligned = is_aligned16(call.x.data) && row_bytes(call.x.dtype, call.x.stride) % 16 == 0;
  for (int i = 0; i < call.count; ++i) {
    const WeightView& w = call.parts[i].w;
    aligned = aligned && is_aligned16(w.data) && w.row_bytes() % 16 == 0;
  }
  return aligned;
}

int row_groups(const LinearParams& p, int rows) {
  int groups = 0;
  for (int i = 0; i < (p.epilogue == Epilogue::kGated ? 1 : p.count); ++i) {
    groups += (p.part[i].n + rows - 1) / rows;
  }
  return groups;
}

bool can_append(const LinearCall& call, const AppendCall& append) {
  const KvLayerView& kv = append.kv;
  const int64_t kv_rows = int64_t{kv.kv_heads} * kv.head_dim;
  return call.count == 3 && call.x.rows == 1 && call.epilogue == Epilogue::kStore &&
         is_vector_aligned(call) && kv.type == KvType::kF16 && append.angles != nullptr &&
         append.rope_dims == kv.head_dim && kv.head_dim % 2 == 0 && append.batch.sequences == 1 &&
         call.parts[0].w.rows % kv.head_dim == 0 && call.parts[1].w.rows == kv_rows &&
         call.parts[2].w.rows == kv_rows;
}

}  // namespace spillway::cuda
