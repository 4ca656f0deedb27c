// SPDX-License-Identifier: Apache-2.0
// Linear layers on a GPU: chooses the kernel that multiplies (FlashDecoding++, section 5).
#include <algorithm>

#include "base/error.h"
#include "cuda/cuda_ops.h"
#include "cuda/dequantize/dequantize.h"
#include "cuda/linear/linear_quant.h"
#include "cuda/overlapping_launches.h"
#include "cuda/rows/elementwise.h"

namespace spillway::cuda {
namespace {

bool is_plain(DType type) {
  return type == DType::kF32 || type == DType::kF16 || type == DType::kBF16;
}

// Returns the type that a kernel expects x to have.
DType input_type(DType weights) { return is_plain(weights) ? weights : DType::kF16; }

// Returns whether two matrices can share a launch: the same kernel serves both.
bool go_together(const LinearPart& a, const LinearPart& b) {
  return a.w.dtype == b.w.dtype && a.w.layout == b.w.layout && a.w.cols == b.w.cols &&
         a.out.dtype == b.out.dtype && a.out.stride == b.out.stride;
}

// From m2 tokens on the library takes over from the kernels that decode quantized weights in
// registers: the weights are then expanded to F16 once per step, which pays when many tokens share
// it.
constexpr InflectionPoints kQuantizedPoints = {.m1 = 2, .m2 = kQuantLinearTokens + 1};

}  // namespace

LinearPart CudaOps::part_of(const Projection& projection) const {
  SPW_ASSERT(projection.bias.empty() ||
             (projection.bias.dtype == DType::kF32 && projection.bias.cols == projection.w.rows));
  return {projection.w, reinterpret_cast<const float*>(projection.bias.data), projection.out};
}

InflectionPoints CudaOps::points_for(const LinearCall& call) const {
  const WeightView& w = call.parts[0].w;
  const InflectionPoints own =
      is_plain(w.dtype) ? default_points(problem_of(call), library_ != nullptr) : kQuantizedPoints;
  if (tuning_ == nullptr) return own;
  // Matrices that are multiplied in one launch count as one matrix.
  LinearShape shape = shape_of(w);
  for (int i = 1; i < call.count; ++i) shape.n += call.parts[i].w.whole_rows();
  InflectionPoints points = tuning_->try_points(shape).value_or(own);
  // The table is measured from two tokens on, so for one token only the default is known.
  if (points.m1 == kMinInflection) points.m1 = std::min(points.m1, own.m1);
  return points;
}

LinearKernel CudaOps::linear_kernel(const WeightView& w, int64_t tokens) const {
  LinearCall call;
  call.parts[0].w = w;
  call.x.rows = tokens;
  call.x.cols = w.cols;
  return kernel_at(points_for(call), tokens);
}

void CudaOps::linear(const WeightView& w, const WeightView& bias, const Activations& x,
                     const Activations& out, LinearMode mode) {
  LinearCall call;
  call.parts[0] = part_of({w, bias, out});
  call.x = x;
  call.epilogue = mode == LinearMode::kStore ? Epilogue::kStore : Epilogue::kAccumulate;
  multiply(call);
}

void CudaOps::linears(std::span<const Projection> parts, const Activations& x) {
  for (size_t begin = 0; begin < parts.size();) {
    LinearCall call;
    call.x = x;
    call.parts[0] = part_of(parts[begin]);
    size_t end = begin + 1;
    for (; end < parts.size() && end - begin < std::size(call.parts); ++end) {
      const LinearPart next = part_of(parts[end]);
      if (!go_together(call.parts[0], next)) break;
      call.parts[end - begin] = next;
    }
    call.count = static_cast<int>(end - begin);
    multiply(call);
    begin = end;
  }
}

void CudaOps::project_and_append(const Projection& q, const Projection& k, const Projection& v,
                                 const Activations& x, const Activations& angles, RopeStyle style,
                                 const KvLayerView& kv, std::span<const SequenceSpan> spans) {
  LinearCall call;
  call.parts[0] = part_of(q);
  call.parts[1] = part_of(k);
  call.parts[2] = part_of(v);
  call.count = 3;
  call.x = x;
  const bool together =
      go_together(call.parts[0], call.parts[1]) && go_together(call.parts[0], call.parts[2]);
  const bool one_token =
      spans.size() == 1 && spans[0].rows == 1 && x.rows == 1 && x.dtype == input_type(q.w.dtype);
  if (one_token && !deterministic_ && techniques_.gemv) {
    const AppendCall append = append_call(q.out, k.out, v.out, angles, style, kv, spans);
    if (try_persistent([&] { return step_.add_append(call, append); })) return;
    // GEMV is used even where a flat kernel is faster: it saves the launch of the append.
    if (together && is_plain(q.w.dtype) && can_append(call, append)) {
      return linear_gemv_append(call, append, queue());
    }
  }
  Ops::project_and_append(q, k, v, x, angles, style, kv, spans);
}

void CudaOps::activated_linear(ActivationKind kind, const Projection& up, const Activations& x) {
  LinearCall call;
  call.parts[0] = part_of(up);
  call.x = x;
  call.epilogue = Epilogue::kActivate;
  call.activation = kind;
  multiply(call);
}

void CudaOps::gated_linear(ActivationKind kind, const Projection& gate, const Projection& up,
                           const Activations& x) {
  LinearCall call;
  call.parts[0] = part_of(gate);
  call.parts[1] = part_of(up);
  if (!go_together(call.parts[0], call.parts[1]) || gate.w.rows != up.w.rows) {
    linear(up.w, up.bias, x, up.out, LinearMode::kStore);
    linear(gate.w, gate.bias, x, gate.out, LinearMode::kStore);
    gated_activate(kind, gate.out, up.out, up.out);
    return;
  }
  // The result belongs to up.out, but the kernels write it to the first part's `out`.
  std::swap(call.parts[0].out, call.parts[1].out);
  call.count = 2;
  call.x = x;
  call.epilogue = Epilogue::kGated;
  call.activation = kind;
  multiply(call);
}

Activations CudaOps::as_type(const Activations& x, DType type) {
  if (x.dtype == type) return x;
  const Activations converted{
      type, x.rows, x.cols, x.cols,
      grown(converted_, static_cast<size_t>(row_bytes(type, x.rows * x.cols)))};
  cuda::gather_rows(x, nullptr, converted, queue());
  return converted;
}

void CudaOps::multiply(LinearCall call) {
  const WeightView& w = call.parts[0].w;
  const int64_t tokens = call.x.rows;
  for (int i = 0; i < call.count; ++i) {
    const LinearPart& part = call.parts[i];
    SPW_ASSERT(part.w.cols == call.x.cols && part.out.rows == tokens &&
               part.out.cols == part.w.rows);
  }
  int64_t rows = 0;
  for (int i = 0; i < call.count; ++i) rows += call.parts[i].w.rows;
  if (tokens == 0 || rows == 0) return;
  if (try_persistent([&] { return step_.add_linear(call); })) return;
  queue();
  call.x = as_type(call.x, input_type(w.dtype));
  if (is_plain(w.dtype)) {
    multiply_plain(call);
  } else {
    multiply_quantized(call);
  }
}

void CudaOps::multiply_plain(const LinearCall& call) {
  const LinearScratch scratch{grown(linear_scratch_, flat_scratch_bytes(gpu_.sms), /*zeroed=*/true),
                              linear_scratch_.bytes()};
  LinearProblem problem = problem_of(call);
  if (deterministic_) {
    // Uses one variant whatever the number of tokens, in chunks of as many tokens as it splits the
    // columns the same way for.
    problem.tokens = kFlatTokens;
    const LinearVariant variant = plan_flat(problem, gpu_);
    for (int64_t first = 0; first < call.x.rows; first += kFlatTokens) {
      const int64_t count = std::min<int64_t>(kFlatTokens, call.x.rows - first);
      linear_flat(tokens_of(call, first, count), variant, scratch, stream_);
    }
    return;
  }
  LinearKernel kernel = kernel_at(points_for(call), problem.tokens);
  if (kernel == LinearKernel::kGemv && !techniques_.gemv) kernel = LinearKernel::kFlat;
  if (kernel == LinearKernel::kFlat && !techniques_.flat_gemm) {
    kernel = problem.tokens == 1 && techniques_.gemv ? LinearKernel::kGemv : LinearKernel::kGemm;
  }
  if (kernel != LinearKernel::kGemv && overlapping_launches()) {
    return linear_flat(call, plan_overlapping(problem, gpu_), scratch, stream_);
  }
  switch (kernel) {
    case LinearKernel::kGemv:
      return linear_gemv(call, plan_gemv(problem, gpu_), stream_);
    case LinearKernel::kFlat:
      if (problem.tokens <= kFlatTokens)
        return linear_flat(call, plan_flat(problem, gpu_), scratch, stream_);
      [[fallthrough]];
    case LinearKernel::kGemm:
      return multiply_by_library(call);
  }
}

void CudaOps::multiply_quantized(const LinearCall& call) {
  const int64_t tokens = call.x.rows;
  if (deterministic_ || overlapping_launches() ||
      kernel_at(points_for(call), tokens) != LinearKernel::kGemm) {
    quant_linear(call, stream_, {.same_bits = deterministic_});
    return;
  }
  // The matrices are expanded one at a time into one F16 buffer.
  int64_t elements = 0;
  for (int i = 0; i < call.count; ++i)
    elements = std::max(elements, call.parts[i].w.rows * call.parts[i].w.cols);
  std::byte* const memory = grown(expanded_, static_cast<size_t>(elements) * 2);
  const auto expand = [&](LinearPart part) {
    const Activations to{DType::kF16, part.w.rows, part.w.cols, part.w.cols, memory};
    dequantize_rows(part.w, 0, to, stream_);
    part.w = {DType::kF16, part.w.rows,         part.w.cols,
              memory,      WeightLayout::kRows, part.w.sliced_from};
    return part;
  };
  LinearCall one = call;
  one.count = 1;
  if (call.epilogue == Epilogue::kGated) {
    one.epilogue = Epilogue::kStore;
    for (int i = 0; i < 2; ++i) {
      one.parts[0] = expand(call.parts[i]);
      multiply_by_library(one);
    }
    cuda::gated_activate(call.activation, call.parts[0].out, call.parts[1].out, call.parts[0].out,
                         queue());
    return;
  }
  for (int i = 0; i < call.count; ++i) {
    if (call.parts[i].w.rows == 0) continue;  // this device has no rows of this matrix
    one.parts[0] = expand(call.parts[i]);
    multiply_by_library(one);
  }
}

// Must not be called while launches overlap: the library's kernels were seen to read what the
// kernel before them had not written yet (with six processes on the GPU one product in eight was
// wrong; without overlap none in 528). Steps whose launches overlap use kernels of our own.
void CudaOps::multiply_by_library(const LinearCall& call) {
  SPW_ASSERT(!overlapping_launches() || library_ == nullptr);
  if (library_ != nullptr && library_takes(call)) {
    const size_t bytes = library_scratch_bytes(call);
    linear_library(*library_, call, {grown(library_workspace_, bytes), library_workspace_.bytes()},
                   stream_);
  } else {
    linear_tiled(call, {linear_scratch_.data(), linear_scratch_.bytes()}, stream_);
  }
}

}  // namespace spillway::cuda
