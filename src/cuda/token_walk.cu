// SPDX-License-Identifier: Apache-2.0
#include "cuda/token_walk.h"

#include <algorithm>
#include <type_traits>
#include <utility>

#include "base/error.h"
#include "cuda/cuda_error.h"
#include "cuda/linear_params.cuh"
#include "cuda/token_walk_attention.cuh"
#include "cuda/token_walk_input.cuh"

namespace spillway::cuda {
namespace {

// Sums of a round's pairs, of two rounds in turn: one is read while the next is written.
constexpr int kRoundPairs = 64;
struct PairSums {
  float of[2][kRoundPairs][2][kColumnWarps];
};

#if __CUDA_ARCH__ >= 900

// All blocks have done `arrivals` / gridDim.x phases, and see what the others have written.
__device__ __forceinline__ void meet(uint32_t* counter, uint32_t arrivals) {
  __syncthreads();
  if (threadIdx.x == 0) {
    asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(counter) : "memory");
    uint32_t now = 0;
    do {
      asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(counter) : "memory");
    } while (now < arrivals);
  }
  __syncthreads();
}

// Eight columns of two rows with x. Two sums per row: not every product waits for the one before
// it.
template <class T>
__device__ __forceinline__ void add_eight(const uint8_t* piece, int column, const float (&x)[8],
                                          float (&sum)[2][2]) {
  float a[8], b[8];
  Vector16<T>::unpack(*reinterpret_cast<const uint4*>(piece + 2 * column), a);
  Vector16<T>::unpack(*reinterpret_cast<const uint4*>(piece + kPieceRowBytes + 2 * column), b);
#pragma unroll
  for (int e = 0; e < 8; ++e) {
    sum[0][e % 2] = fmaf(a[e], x[e], sum[0][e % 2]);
    sum[1][e % 2] = fmaf(b[e], x[e], sum[1][e % 2]);
  }
}

// A piece of two rows with x.
template <class T>
__device__ __forceinline__ void add_products(const uint8_t* piece, const T* x, int columns,
                                             float (&sum)[2][2]) {
  const auto eight = [&](int column) {
    float v[8];
    Vector16<T>::unpack(*reinterpret_cast<const uint4*>(x + column), v);
    add_eight<T>(piece, column, v, sum);
  };
  const int first = threadIdx.x % 32 * 8;
  if (columns == kPieceColumns) {
#pragma unroll
    for (int i = 0; i < kPieceColumns / 256; ++i) eight(i * 256 + first);
  } else {
    for (int column = first; column < columns; column += 256) eight(column);
  }
}

// The sums over the warp of two values: lanes 0 to 15 have the first, the others the second.
__device__ __forceinline__ float sum_of_two(float a, float b) {
  const bool low = threadIdx.x % 32 < 16;
  float mine = low ? a : b;
  mine += __shfl_xor_sync(~0U, low ? b : a, 16);
#pragma unroll
  for (int offset = 8; offset > 0; offset /= 2) mine += __shfl_xor_sync(~0U, mine, offset);
  return mine;
}

// One row's sum, and what becomes of it: two neighbouring threads have a pair.
struct RowEnd {
  RowPair pair;
  int row = 0;
  bool valid = false;
  float before = 0, bias = 0;  // fetched while sums are made

  template <int D>
  __device__ __forceinline__ void begin(const Walk& walk, const WalkPhase& phase, int index,
                                        bool exists) {
    const int r = threadIdx.x % 2;
    pair = pair_of<D>(phase, walk.sequence.interleaved, index);
    row = r == 0 ? pair.row[0] : pair.row[1];
    valid = exists && row < phase.n[pair.part];
    before = bias = 0;
    if (!valid) return;
    const int matrix = phase.kind == WalkKind::kGated ? r : pair.part;
    if (phase.bias[matrix] != nullptr) bias = __ldg(phase.bias[matrix] + row);
    if (phase.kind == WalkKind::kLinear && phase.epilogue == Epilogue::kAccumulate) {
      before = __ldcg(reinterpret_cast<const float*>(phase.out[pair.part]) + row);
    }
  }

  // All threads of the warp.
  template <int D>
  __device__ __forceinline__ void finish(const Walk& walk, const WalkPhase& phase,
                                         const WalkToken& token, float sum) const {
    float mine = sum + bias, other = __shfl_xor_sync(~0U, mine, 1);
    if (!valid) return;
    const int r = threadIdx.x % 2, part = pair.part;
    const WalkSequence& s = walk.sequence;
    if (phase.kind == WalkKind::kGated) {
      if (r == 0) {
        store_as(phase.out_type, phase.out[0], row, activated(phase.activation, mine) * other);
      }
      return;
    }
    if (phase.kind == WalkKind::kLinear) {
      if (phase.epilogue == Epilogue::kAccumulate) {
        reinterpret_cast<float*>(phase.out[part])[row] = before + mine;
      } else {
        if (phase.epilogue == Epilogue::kActivate) mine = activated(phase.activation, mine);
        store_as(phase.out_type, phase.out[part], row, mine);
      }
      return;
    }
    // As linears() and rope_and_append() would: rounded in between.
    mine = rounded_as(phase.out_type, mine);
    other = rounded_as(phase.out_type, other);
    if (part < 2 && s.angles != nullptr) {
      const int index = s.interleaved ? row % D / 2 : row % (D / 2);
      const float2 angle = __ldg(reinterpret_cast<const float2*>(s.angles) + index);
      const float along = __fmul_rn(mine, angle.x), across = __fmul_rn(other, angle.y);
      mine = r == 0 ? __fsub_rn(along, across) : __fadd_rn(across, along);
    }
    if (part == 0) return store_as(phase.out_type, phase.out[0], row, mine);
    std::byte* const page = phase.out[part] + token.block * s.block_bytes +
                            static_cast<int64_t>(row / D) * (kKvBlockTokens * D * 2);
    reinterpret_cast<__half*>(page)[token.position % kKvBlockTokens * D + row % D] =
        __float2half_rn(mine);
  }
};

template <class T, int D>
__device__ __forceinline__ void linear_phase(const Walk& walk, const WalkPhase& phase,
                                             const WalkToken& token, WalkRing<D>& ring, const T* x,
                                             PairSums& sums) {
  const int thread = threadIdx.x, lane = thread % 32, column_warp = thread / 32 % kColumnWarps;
  const BlockPairs pairs(phase);
  const WarpColumns columns(phase.k);
  x += columns.first;
  // Where a warp's columns are one whole piece, it holds its part of x.
  const bool holds_x = columns.count == kPieceColumns;
  float held[kPieceColumns / 256][8];
  if (holds_x) {
#pragma unroll
    for (int i = 0; i < kPieceColumns / 256; ++i) {
      Vector16<T>::unpack(*reinterpret_cast<const uint4*>(x + i * 256 + lane * 8), held[i]);
    }
  }
  for (int round = 0; round * kRoundPairs < pairs.count; ++round) {
    const int first = round * kRoundPairs, last = min(pairs.count, first + kRoundPairs);
    auto& of = sums.of[round % 2];
    RowEnd end;
    const int mine = first + thread / 2;
    if (thread < 2 * kRoundPairs) end.begin<D>(walk, phase, pairs[mine], mine < last);
    for (int i = first + first_pair(); i < last; i += kRowWarps) {
      float sum[2][2] = {};
      for (int column = 0; column < columns.count; column += kPieceColumns) {
        const uint8_t* const piece = ring.wait();
        if (holds_x) {
#pragma unroll
          for (int j = 0; j < kPieceColumns / 256; ++j) {
            add_eight<T>(piece, j * 256 + lane * 8, held[j], sum);
          }
        } else {
          add_products(piece, x + column, min(kPieceColumns, columns.count - column), sum);
        }
        ring.release();
      }
      const float total = sum_of_two(sum[0][0] + sum[0][1], sum[1][0] + sum[1][1]);
      if (lane % 16 == 0) of[i - first][lane / 16][column_warp] = total;
    }
    __syncthreads();
    if (thread < 2 * kRoundPairs) {
      float sum = 0;
#pragma unroll
      for (int w = 0; w < kColumnWarps; ++w) sum += of[thread / 2][thread % 2][w];
      end.finish<D>(walk, phase, token, sum);
    }
  }
}

#endif

template <class T, int D, int G>
__global__ void __launch_bounds__(kWalkThreads, 1) walk_kernel(const __grid_constant__ Walk walk) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(128) uint8_t shared[];
  __shared__ float partial[kNormWarps];
  __shared__ PairSums sums;
  const int warp = threadIdx.x / 32;
  const int ring_bytes = walk.stages * kStageBytes;
  uint8_t* const input = shared + kWalkWarps * ring_bytes;
  auto* const barriers = reinterpret_cast<uint64_t*>(input + walk.x_bytes);
  const WalkToken token = WalkToken::of<G>(walk.sequence, gridDim.x);
  WalkRing<D> ring(walk, token, shared + warp * ring_bytes, barriers + warp * walk.stages);
  auto* const counters = reinterpret_cast<uint32_t*>(walk.scratch);
  for (int i = 0; i < walk.count; ++i) {
    if (i > 0) meet(counters, i * gridDim.x);
    const WalkPhase& phase = walk.phases[i];
    if (phase.kind == WalkKind::kAttention) {
      attention_phase<T, D, G>(walk, phase, token, ring, input);
    } else {
      T* const x = reinterpret_cast<T*>(input);
      take_input(phase, x, partial);
      if (i + 1 < walk.count) expect_norm(walk.phases[i + 1]);
      linear_phase(walk, phase, token, ring, x, sums);
    }
  }
  // Nobody looks at the first counter after having counted here.
  if (threadIdx.x == 0 && atomicAdd(counters + 1, 1) == gridDim.x - 1) {
    counters[0] = 0;
    counters[1] = 0;
  }
#endif
}

using Kernel = void (*)(Walk);

Kernel kernel_for(DType type, int head_dim, bool one_query) {
  const auto of = [&]<class T>() -> Kernel {
    if (head_dim == 64) return one_query ? walk_kernel<T, 64, 1> : walk_kernel<T, 64, 4>;
    return one_query ? walk_kernel<T, 128, 1> : walk_kernel<T, 128, 4>;
  };
  return type == DType::kF16 ? of.template operator()<__half>()
                             : of.template operator()<__nv_bfloat16>();
}

constexpr int kBarrierBytes = 1024;  // of all rings
constexpr int kAttentionBytes = sizeof(AttentionShared<128, 4>);
static_assert(sizeof(Walk) <= 32764, "a kernel's arguments");

bool is_aligned16(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }

bool is_walk_type(DType type) { return type == DType::kF16 || type == DType::kBF16; }

// Stages of a warp's ring beside an input of this size.
int stages_beside(const GpuShape& gpu, int x_bytes) {
  const int fixed = x_bytes + kBarrierBytes + static_cast<int>(sizeof(PairSums)) + 256;
  return std::min((gpu.shared_bytes - fixed) / (kWalkWarps * kStageBytes),
                  kBarrierBytes / (8 * kWalkWarps));
}

}  // namespace

TokenWalk::TokenWalk(const GpuShape& gpu) : gpu_(gpu) { walk_.x_bytes = kAttentionBytes; }

bool TokenWalk::serves(const GpuShape& gpu) {
  return gpu.compute_capability >= 90 && stages_beside(gpu, 32 << 10) >= 4;
}

size_t TokenWalk::scratch_bytes(const GpuShape& gpu) {
  return kScratchCounterBytes + static_cast<size_t>(gpu.sms) * sizeof(AttentionPart<128, 4>);
}

bool TokenWalk::find_input(const Activations& x, DType type, WalkPhase& phase) const {
  phase.x = x.data;
  if (deferred_.norm && deferred_.norm->out.data == x.data) {
    const DeferredNorm& norm = *deferred_.norm;
    if (norm.out.dtype != type || norm.out.cols != x.cols) return false;
    phase.x = norm.x.data;
    phase.norm = norm.kind;
    phase.norm_weight = norm.weight;
    phase.norm_bias = norm.bias;
    phase.norm_eps = norm.eps;
    return true;
  }
  SPW_ASSERT(x.data != gone_);
  if (deferred_.copy && deferred_.copy->out.data == x.data) return false;
  return x.dtype == type && is_aligned16(x.data);
}

bool TokenWalk::must_keep(const std::byte* data) const {
  return (deferred_.norm && deferred_.norm->x.data == data && !norm_read_) ||
         (deferred_.copy && deferred_.copy->x.data == data && !copy_read_);
}

void TokenWalk::note_read(const Activations& x) {
  if (deferred_.norm && deferred_.norm->out.data == x.data) norm_read_ = true;
}

void TokenWalk::note_written(const std::byte* data) {
  if (deferred_.norm && deferred_.norm->x.data == data) {
    gone_ = deferred_.norm->out.data;
    deferred_.norm.reset();
  }
  if (deferred_.copy && deferred_.copy->x.data == data) deferred_.copy.reset();
  if (data == gone_) gone_ = nullptr;
}

bool TokenWalk::defer_norm(const DeferredNorm& norm) {
  const bool layer = norm.kind == NormKind::kLayer;
  if (deferred_.norm && !norm_read_) return false;
  if (norm.x.rows != 1 || norm.x.dtype != DType::kF32 || !is_walk_type(norm.out.dtype) ||
      norm.x.cols % 8 != 0 || norm.x.cols > kWalkNormColumns || norm.weight == nullptr ||
      layer != (norm.bias != nullptr) || !is_aligned16(norm.x.data) || !is_aligned16(norm.weight) ||
      !is_aligned16(norm.bias)) {
    return false;
  }
  DeferredNorm deferred = norm;
  if (deferred_.copy && deferred_.copy->out.data == norm.x.data) {
    deferred.x = deferred_.copy->x;
    copy_read_ = true;
  }
  deferred_.norm = deferred;
  norm_read_ = false;
  if (gone_ == norm.out.data) gone_ = nullptr;
  return true;
}

bool TokenWalk::defer_copy(const DeferredCopy& copy) {
  if (deferred_.copy || copy.x.rows != 1 || copy.out.rows != 1 || copy.x.dtype != DType::kF32 ||
      copy.out.dtype != DType::kF32) {
    return false;
  }
  deferred_.copy = copy;
  copy_read_ = false;
  return true;
}

TokenWalk::Deferred TokenWalk::take_deferred(bool step_ends) {
  Deferred deferred = std::exchange(deferred_, {});
  if (step_ends && copy_read_) deferred.copy.reset();
  if (step_ends && norm_read_) deferred.norm.reset();
  gone_ = nullptr;
  return deferred;
}

bool TokenWalk::add(WalkPhase& phase, DType type, const WalkSequence* sequence) {
  const int x_bytes = std::max(kAttentionBytes, (2 * phase.k + 127) / 128 * 128);
  if (walk_.count == kWalkPhases || (walk_.count > 0 && type != type_) ||
      stages_beside(gpu_, x_bytes) < 4) {
    return false;
  }
  if (sequence != nullptr) {
    // Appending and attending say different things of the sequence.
    WalkSequence merged = sequence_.value_or(*sequence);
    const auto merge = [](auto& into, const auto& from) {
      if (from == std::remove_cvref_t<decltype(from)>{}) return true;
      if (into == std::remove_cvref_t<decltype(into)>{}) into = from;
      return into == from;
    };
    if (!merge(merged.angles, sequence->angles) || !merge(merged.position, sequence->position) ||
        !merge(merged.block_table, sequence->block_table) ||
        !merge(merged.block_bytes, sequence->block_bytes) ||
        !merge(merged.heads, sequence->heads) || !merge(merged.kv_heads, sequence->kv_heads) ||
        !merge(merged.head_dim, sequence->head_dim) || !merge(merged.window, sequence->window) ||
        !merge(merged.scale, sequence->scale) ||
        !merge(merged.interleaved, sequence->interleaved)) {
      return false;
    }
    sequence_ = merged;
  }
  const int pairs = phase.pairs;
  phase.first_block = next_block_;
  phase.pairs = pairs / gpu_.sms;
  phase.more = pairs % gpu_.sms;
  next_block_ = (next_block_ + phase.more) % gpu_.sms;
  type_ = type;
  walk_.x_bytes = std::max(walk_.x_bytes, x_bytes);
  walk_.phases[walk_.count++] = phase;
  return true;
}

bool TokenWalk::add_linear(const LinearCall& call) {
  const WeightView& w = call.parts[0].w;
  if (call.x.rows != 1 || !is_walk_type(w.dtype) || w.cols % 8 != 0) return false;
  WalkPhase phase = {};
  phase.kind = call.epilogue == Epilogue::kGated ? WalkKind::kGated : WalkKind::kLinear;
  phase.epilogue = call.epilogue;
  phase.activation = call.activation;
  phase.out_type = call.parts[0].out.dtype;
  phase.k = static_cast<int32_t>(w.cols);
  if (!find_input(call.x, w.dtype, phase)) return false;
  const LinearParams p = params_of(call);
  for (int i = 0; i < call.count; ++i) {
    if (!is_aligned16(p.part[i].w) || must_keep(p.part[i].out)) return false;
    phase.w[i] = p.part[i].w;
    phase.bias[i] = p.part[i].bias;
    phase.out[i] = p.part[i].out;
    phase.n[i] = p.part[i].n;
    if (phase.kind == WalkKind::kLinear) phase.pairs += (p.part[i].n + 1) / 2;
  }
  if (phase.kind == WalkKind::kGated) phase.pairs = phase.n[0];
  if (!add(phase, w.dtype, nullptr)) return false;
  note_read(call.x);
  for (int i = 0; i < call.count; ++i) note_written(phase.out[i]);
  return true;
}

bool TokenWalk::add_append(const LinearCall& call, const AppendCall& append) {
  const KvLayerView& kv = append.kv;
  const WeightView& w = call.parts[0].w;
  const int64_t kv_rows = int64_t{kv.kv_heads} * kv.head_dim;
  const bool rotates = append.angles != nullptr;
  if (call.count != 3 || call.x.rows != 1 || !is_walk_type(w.dtype) || w.cols % 8 != 0 ||
      kv.type != KvType::kF16 || (kv.head_dim != 64 && kv.head_dim != 128) ||
      (rotates && append.rope_dims != kv.head_dim) || append.batch.sequences != 1 ||
      w.rows % kv.head_dim != 0 || call.parts[1].w.rows != kv_rows ||
      call.parts[2].w.rows != kv_rows) {
    return false;
  }
  WalkPhase phase = {};
  phase.kind = WalkKind::kAppend;
  phase.epilogue = Epilogue::kStore;
  phase.out_type = call.parts[0].out.dtype;
  phase.k = static_cast<int32_t>(w.cols);
  if (!find_input(call.x, w.dtype, phase)) return false;
  const LinearParams p = params_of(call);
  for (int i = 0; i < 3; ++i) {
    if (!is_aligned16(p.part[i].w)) return false;
    phase.w[i] = p.part[i].w;
    phase.bias[i] = p.part[i].bias;
    phase.n[i] = p.part[i].n;
    phase.pairs += p.part[i].n / 2;
  }
  phase.out[0] = p.part[0].out;
  phase.out[1] = kv.k;
  phase.out[2] = kv.v;
  WalkSequence sequence;
  sequence.angles = append.angles;
  sequence.interleaved = append.style == RopeStyle::kInterleaved;
  sequence.position = append.batch.start;
  sequence.block_table = append.batch.block_table;
  sequence.block_bytes = kv.block_bytes();
  sequence.head_dim = kv.head_dim;
  if (!add(phase, w.dtype, &sequence)) return false;
  note_read(call.x);
  note_written(phase.out[0]);
  return true;
}

bool TokenWalk::add_attention(const AttentionCall& call) {
  const KvLayerView& kv = call.kv;
  const DType type = call.q.dtype;
  const int64_t chunks = int64_t{kv.kv_heads} * ((call.params.heads / kv.kv_heads + 3) / 4);
  if (call.q.rows != 1 || call.batch.sequences != 1 || !is_walk_type(type) ||
      kv.type != KvType::kF16 || (kv.head_dim != 64 && kv.head_dim != 128) ||
      call.params.top_k > 0 || call.out.dtype != type || !is_aligned16(call.q.data) ||
      chunks > static_cast<int64_t>(kScratchCounterBytes / 4) - kMergesAt) {
    return false;
  }
  WalkPhase phase = {};
  phase.kind = WalkKind::kAttention;
  phase.x = call.q.data;
  phase.out[0] = call.out.data;
  phase.out[1] = kv.k;
  phase.out[2] = kv.v;
  WalkSequence sequence;
  sequence.position = call.batch.start;
  sequence.block_table = call.batch.block_table;
  sequence.block_bytes = kv.block_bytes();
  sequence.heads = call.params.heads;
  sequence.kv_heads = kv.kv_heads;
  sequence.head_dim = kv.head_dim;
  sequence.window = call.params.window;
  sequence.scale = call.params.scale;
  return add(phase, type, &sequence);
}

void TokenWalk::launch(std::byte* scratch, cudaStream_t stream) {
  if (walk_.count == 0) return;
  walk_.sequence = sequence_.value_or(WalkSequence());
  walk_.scratch = scratch;
  walk_.stages = stages_beside(gpu_, walk_.x_bytes);
  const WalkSequence& s = walk_.sequence;
  const Kernel kernel = kernel_for(type_, s.head_dim, s.heads == 0 || s.heads == s.kv_heads);
  const int bytes = walk_.stages * kWalkWarps * kStageBytes + walk_.x_bytes + kBarrierBytes;
  SPW_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(gpu_.sms));
  config.blockDim = dim3(kWalkThreads);
  config.dynamicSmemBytes = static_cast<size_t>(bytes);
  config.stream = stream;
  // Blocks wait for each other: all of them run, or none.
  cudaLaunchAttribute together = {};
  together.id = cudaLaunchAttributeCooperative;
  together.val.cooperative = 1;
  config.attrs = &together;
  config.numAttrs = 1;
  const cudaError_t error = cudaLaunchKernelEx(&config, kernel, walk_);
  walk_ = {};
  walk_.x_bytes = kAttentionBytes;
  sequence_.reset();
  next_block_ = 0;
  SPW_CUDA_CHECK(error);
}

}  // namespace spillway::cuda
