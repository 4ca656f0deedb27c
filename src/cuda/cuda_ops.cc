// SPDX-License-Identifier: Apache-2.0
#include "cuda/cuda_ops.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "cuda/attention/attention_decode.h"
#include "cuda/attention/attention_prefill.h"
#include "cuda/attention/attention_topk.h"
#include "cuda/attention/softmax_state.h"
#include "cuda/dequantize/dequantize.h"
#include "cuda/kv/kv_append.h"
#include "cuda/linear/linear_quant.h"
#include "cuda/overlapping_launches.h"
#include "cuda/rows/elementwise.h"
#include "cuda/rows/norm.h"
#include "cuda/sample/logprobs.h"
#include "cuda/sample/sample.h"
#include "device/tuning.h"

namespace spillway::cuda {
namespace {

const float* f32_vector(const WeightView& w) {
  SPW_ASSERT(w.empty() || (w.dtype == DType::kF32 && w.rows == 1));
  return reinterpret_cast<const float*>(w.data);
}

BatchView without_first(BatchView batch, int sequences) {
  batch.sequences -= sequences;
  batch.first_row += sequences;
  batch.rows += sequences;
  batch.start += sequences;
  batch.block_table += int64_t{sequences} * batch.table_stride;
  if (batch.home_table != nullptr) batch.home_table += int64_t{sequences} * batch.table_stride;
  return batch;
}

// Hands out arrays that lie one after the other. Arrays that need the largest alignment are taken
// first.
struct Arrays {
  std::byte* next;
  template <class T>
  T* take(size_t count) {
    return reinterpret_cast<T*>(std::exchange(next, next + count * sizeof(T)));
  }
};

}  // namespace

CudaOps::CudaOps(Device& device, cudaStream_t stream)
    : device_(device),
      stream_(stream),
      gpu_(current_gpu()),
      tables_(device, stream),
      graphs_(stream),
      step_(gpu_),
      kv_faults_(make_pinned(sizeof(uint32_t))) {
  *static_cast<uint32_t*>(kv_faults_.get()) = 0;
}

CudaOps::~CudaOps() = default;

// Recorded steps use the kernels of the mode they were recorded in, so a change invalidates them.
void CudaOps::set_deterministic(bool on) {
  if (on != deterministic_) ++generation_;
  deterministic_ = on;
}

void CudaOps::set_techniques(const CudaTechniques& techniques) {
  if (techniques == techniques_) return;
  techniques_ = techniques;
  choose_unified_maximum();
}

std::byte* CudaOps::grown(Buffer& buffer, size_t bytes, bool zeroed) {
  if (buffer.bytes() >= bytes) return buffer.data();
  SPW_CUDA_CHECK(cudaStreamSynchronize(stream_));
  ++generation_;  // before the allocation: if that fails, recorded steps are invalid all the same
  buffer = Buffer();
  buffer = device_.allocate(bytes, MemoryTag::kWorkspace);
  if (zeroed) SPW_CUDA_CHECK(cudaMemsetAsync(buffer.data(), 0, bytes, stream_));
  return buffer.data();
}

std::byte* CudaOps::exchange(size_t bytes) {
  if (exchanged_bytes_ < bytes) {
    exchanged_bytes_ = 0;
    exchanged_ = make_pinned(2 * bytes);
    exchanged_bytes_ = 2 * bytes;
  }
  return static_cast<std::byte*>(exchanged_.get());
}

void CudaOps::set_score_bounds(const ScoreBounds* bounds) {
  score_bounds_ = bounds == nullptr ? std::nullopt : std::optional(*bounds);
  choose_unified_maximum();
}

// Sets phi to the middle of the range in which row maxima lie. The unified maximum stays off where
// this range is so wide that parts of a row would vanish or overflow (as with OPT).
void CudaOps::choose_unified_maximum() {
  ++generation_;  // the maximum is an argument of recorded launches
  unified_ = UnifiedMax();
  if (!score_bounds_ || !techniques_.unified_maximum) return;
  const float width = score_bounds_->highest - score_bounds_->lowest_top;
  unified_.enabled = width < (unified_.high - unified_.low) / 2;
  unified_.phi = (score_bounds_->highest + score_bounds_->lowest_top) / 2;
}

void CudaOps::prepare(const StepLimits& limits) {
  if (library_ == nullptr) library_ = CublasLt::try_load();
  grown(linear_scratch_, flat_scratch_bytes(gpu_.sms), /*zeroed=*/true);
  grown(prefill_scratch_, attention_prefill_scratch_bytes(), /*zeroed=*/true);
  if (library_ != nullptr) grown(library_workspace_, kLibraryWorkspaceBytes);
  if (PersistentStep::serves(gpu_, DType::kF16))
    grown(persistent_scratch_, PersistentStep::scratch_bytes(gpu_), /*zeroed=*/true);
  grown(converted_, static_cast<size_t>(limits.tokens * limits.widest) * sizeof(float));
}

// With several tokens, launches overlap only where every matrix has a kernel of our own made for it
// (plan_overlapping, quant_linear). It saves some microseconds per launch. Measured on an H200:
// F16: layers of 90 MB gain 10-32% with 2 to 16 tokens. Layers of 400 MB lose up to 5% with 2 to 8
// tokens, where the overlapping kernels are slower than the others are without overlap, and gain 4%
// with 32.
// Quantized: +15% with 8 tokens and +8% with 64. With 12 to 32 tokens two thread blocks fill a
// multiprocessor and those of the next kernel find no room: +2% to -8% (Q4_0, Q4_K_M); Q6_K alone
// would gain 10% with 32.
bool CudaOps::overlapping_pays(int64_t tokens, const MatrixFacts& matrices) const {
  constexpr int64_t kLongLayerBytes = int64_t{256} << 20;
  if (tokens <= 1) return tokens == 1;
  if (matrices.has_f32 || deterministic_) return false;
  if (matrices.has_16_bit)
    return tokens <= kOverlapTokens && (tokens >= 16 || matrices.layer_bytes < kLongLayerBytes);
  return tokens <= kQuantSliceTokens || (tokens > 32 && tokens <= kQuantLinearTokens);
}

void CudaOps::run_step(const StepBatch& batch, std::span<const StepPart> parts) {
  const StepShape shape = tables_.upload(batch);
  // Counts the rows that generate, wherever their KV is; rows of prompts have kernels of their own.
  step_rows_ = std::max(1, shape.logit_rows);
  const OverlappingLaunches overlap(techniques_.overlapping_launches && techniques_.flat_gemm &&
                                    overlapping_pays(shape.tokens, batch.matrices));
  // Whether ops are phases of a persistent step depends only on the model and the number of tokens,
  // so that a step gives the same bits wherever its weights and KV are. Phases are collected across
  // ops only in a step with a graph key: only there is nothing but ops between two ops.
  persistent_ = shape.tokens == 1 && !batch.layer_types.empty() && !deterministic_ &&
                techniques_.persistent_step && techniques_.gemv &&
                PersistentStep::serves(gpu_, batch.layer_types);
  collecting_ = persistent_ && batch.graph_key != 0;
  const auto compute = [&](size_t part) {
    parts[part].ops();
    launch_persistent(/*step_ends=*/part + 1 == parts.size());
  };
  try {
    // Steps with prompt tokens differ too much to be worth recording.
    const auto others = tables_.try_other_shapes();
    if (techniques_.graphs && shape.max_rows == 1 && batch.graph_key != 0 && others) {
      graphs_.run({batch.graph_key, generation_, tables_.generation(), shape, *others}, parts,
                  compute);
    } else {
      for (size_t i = 0; i < parts.size(); ++i) {
        if (parts[i].before) parts[i].before();
        compute(i);
      }
    }
  } catch (...) {
    step_ = PersistentStep(gpu_);
    persistent_ = collecting_ = false;
    step_rows_ = 0;
    tables_.end_step();
    throw;
  }
  persistent_ = collecting_ = false;
  step_rows_ = 0;
  tables_.end_step();
}

cudaStream_t CudaOps::queue() {
  if (collecting_) launch_persistent(/*step_ends=*/false);
  return stream_;
}

bool CudaOps::try_persistent(const std::function<bool()>& add) {
  if (!persistent_) return false;
  bool added = add();
  if (!added && collecting_) {
    launch_persistent(/*step_ends=*/false);
    added = add();
  }
  if (added && !collecting_) launch_persistent(/*step_ends=*/false);
  return added;
}

void CudaOps::launch_persistent(bool step_ends) {
  if (!persistent_) return;
  if (!step_.empty()) {
    const size_t bytes = PersistentStep::scratch_bytes(gpu_);
    step_.launch(grown(persistent_scratch_, bytes, /*zeroed=*/true), stream_);
    ++persistent_launches_;
  }
  const auto [copy, norm] = step_.take_deferred(step_ends);
  if (copy) cuda::gather_rows(copy->x, nullptr, copy->out, stream_);
  if (norm) {
    cuda::norm(norm->kind, norm->x, norm->weight, norm->bias, norm->eps, norm->out, stream_);
  }
}

void CudaOps::embed(const WeightView& table, std::span<const int32_t> ids, const Activations& out,
                    LinearMode mode) {
  SPW_ASSERT(out.rows == static_cast<int64_t>(ids.size()) && out.cols == table.cols);
  const cudaStream_t stream = queue();
  const int32_t* const indices = tables_.device_of(ids);
  if (out.dtype == DType::kF32) return embed_rows(table, indices, out, mode, stream);
  SPW_ASSERT(mode == LinearMode::kStore);
  const Activations wide{
      DType::kF32, out.rows, out.cols, out.cols,
      grown(converted_, static_cast<size_t>(out.rows * out.cols) * sizeof(float))};
  embed_rows(table, indices, wide, mode, stream);
  cuda::gather_rows(wide, nullptr, out, stream);
}

void CudaOps::norm(NormKind kind, const Activations& x, const WeightView& weight,
                   const WeightView& bias, float eps, const Activations& out) {
  SPW_ASSERT(weight.empty() || weight.cols == x.cols);
  SPW_ASSERT(bias.empty() || bias.cols == x.cols);
  if (collecting_ && step_.defer_norm({kind, x, out, f32_vector(weight), f32_vector(bias), eps})) {
    return;
  }
  cuda::norm(kind, x, f32_vector(weight), f32_vector(bias), eps, out, queue());
}

void CudaOps::add_norm(NormKind kind, const Activations& x, const WeightView& weight,
                       const WeightView& bias, float eps, const Activations& out) {
  SPW_ASSERT(weight.empty() || weight.cols == x.cols);
  SPW_ASSERT(bias.empty() || bias.cols == x.cols);
  cuda::add_norm(kind, x, f32_vector(weight), f32_vector(bias), eps, out, queue());
}

void CudaOps::scale(const Activations& x, float factor) { cuda::scale(x, factor, queue()); }

void CudaOps::head_norm(NormKind kind, const Activations& x, const WeightView& weight, float eps) {
  cuda::head_norm(kind, x, static_cast<int>(weight.cols), f32_vector(weight), eps, queue());
}

void CudaOps::rope_angles(std::span<const int32_t> positions,
                          std::span<const float> inverse_frequency, float scale,
                          const Activations& out) {
  SPW_ASSERT(out.rows == static_cast<int64_t>(positions.size()) &&
             out.cols == 2 * static_cast<int64_t>(inverse_frequency.size()));
  const cudaStream_t stream = queue();
  cuda::rope_angles(tables_.device_of(positions), constant(inverse_frequency), scale, out, stream);
}

void CudaOps::rope(const Activations& x, int head_dim, const Activations& angles, RopeStyle style) {
  cuda::rope(x, head_dim, angles, style, queue());
}

void CudaOps::kv_append(const Activations& k, const Activations& v, const KvLayerView& kv,
                        std::span<const SequenceSpan> spans) {
  rope_and_append({}, k, v, {}, RopeStyle::kHalves, kv, spans);
}

void CudaOps::rope_and_append(const Activations& q, const Activations& k, const Activations& v,
                              const Activations& angles, RopeStyle style, const KvLayerView& kv,
                              std::span<const SequenceSpan> spans) {
  if (spans.empty()) return;
  cuda::rope_and_append(append_call(q, k, v, angles, style, kv, spans), queue());
}

AppendCall CudaOps::append_call(const Activations& q, const Activations& k, const Activations& v,
                                const Activations& angles, RopeStyle style, const KvLayerView& kv,
                                std::span<const SequenceSpan> spans) {
  StepShape shape;
  const BatchView batch = tables_.device_of(spans, shape).view;
  SPW_ASSERT(angles.empty() || angles.dtype == DType::kF32);
  AppendCall call;
  call.q = q;
  call.k = k;
  call.v = v;
  call.angles = reinterpret_cast<const float*>(angles.data);
  call.angles_stride = angles.stride;
  call.rope_dims = static_cast<int>(angles.cols);
  call.style = style;
  call.kv = kv;
  call.planes = tables_.planes_of(kv);
  call.batch = batch;
  call.faults = static_cast<uint32_t*>(kv_faults_.get());
  return call;
}

std::optional<KvFault> CudaOps::take_kv_fault() {
  SPW_CUDA_CHECK(cudaStreamSynchronize(stream_));
  return KvFault::from_word(std::exchange(*static_cast<uint32_t*>(kv_faults_.get()), 0U));
}

void CudaOps::attention(const Activations& q, const KvLayerView& kv,
                        std::span<const SequenceSpan> spans, const AttentionParams& params,
                        const Activations& out) {
  if (spans.empty()) return;
  StepShape shape;
  BatchView batch = tables_.device_of(spans, shape).view;
  SPW_ASSERT(!shape.values_at_home || params.top_k > 0);
  AttentionCall call{q, out, kv, batch, params, deterministic_ ? 0 : step_rows_};
  call.planes = tables_.planes_of(kv);
  if (try_persistent([&] { return step_.add_attention(call); })) return;
  const cudaStream_t stream = queue();
  if (params.top_k > 0 && shape.generating > 0) {
    call.batch.sequences = shape.generating;
    const size_t bytes =
        attention_topk_scratch_bytes(shape.generating, params.heads, shape.max_partitions);
    std::byte* const scores = grown(topk_scratch_, bytes);
    attention_topk(call, shape.max_partitions, scores, topk_scratch_.bytes(), stream);
    batch = without_first(batch, shape.generating);
    shape.decoding -= shape.generating;
    call.batch = batch;
  }
  // In deterministic mode decode attention takes all rows: that kernel splits every row at the same
  // places, so that results do not depend on the batch.
  const int decoding = deterministic_ ? batch.sequences : shape.decoding;
  if (decoding > 0) {
    call.batch.sequences = decoding;
    const int rows = deterministic_ ? batch.sequences * shape.max_rows : decoding;
    const size_t bytes = attention_decode_scratch_bytes(rows, params.heads, kv.kv_heads,
                                                        kv.head_dim, shape.max_partitions);
    const AttentionScratch scratch{grown(attention_scratch_, bytes), attention_scratch_.bytes()};
    attention_decode(call, unified_, deterministic_ ? shape.max_rows : 1, shape.max_partitions,
                     scratch, stream);
  }
  if (decoding < batch.sequences) {
    call.batch = without_first(batch, decoding);
    const size_t bytes = attention_prefill_scratch_bytes();
    const AttentionScratch scratch{grown(prefill_scratch_, bytes, /*zeroed=*/true), bytes};
    attention_prefill(call, unified_, shape.max_rows, scratch, stream);
  }
}

void CudaOps::clear_state(const SoftmaxState& sums) { cuda::clear_state(sums, queue()); }

void CudaOps::attend_partition(const Activations& q, const KvLayerView& kv,
                               std::span<const SequenceSpan> spans, const AttentionParams& params,
                               const SoftmaxState& sums) {
  if (spans.empty()) return;
  SPW_ASSERT(sums.memory.dtype == DType::kF32 && sums.rows() == q.rows &&
             sums.heads == params.heads && sums.head_dim == kv.head_dim);
  StepShape shape;
  const PlacedBatch placed = tables_.device_of(spans, shape);
  AttentionCall call{q, {}, kv, placed.view, params, deterministic_ ? 0 : step_rows_};
  call.covered = placed.covered;
  const cudaStream_t stream = queue();
  const int decoding = deterministic_ ? placed.view.sequences : shape.decoding;
  if (decoding > 0) {
    call.batch.sequences = decoding;
    call.sums = reinterpret_cast<float*>(sums.memory.data);
    call.sums_stride = sums.memory.stride;
    const int rows = deterministic_ ? placed.view.sequences * shape.max_rows : decoding;
    const size_t bytes = attention_decode_scratch_bytes(
        rows, params.heads, kv.kv_heads, kv.head_dim, shape.max_partitions, /*to_sums=*/true);
    const AttentionScratch scratch{grown(attention_scratch_, bytes), attention_scratch_.bytes()};
    attention_decode(call, unified_, deterministic_ ? shape.max_rows : 1, shape.max_partitions,
                     scratch, stream);
  }
  if (decoding == placed.view.sequences) return;
  // Prefill attention over many rows computes the softmax state of this KV partition by itself,
  // which is then merged into `sums`.
  const int64_t columns = sums.memory.cols;
  SoftmaxState seen{{DType::kF32, q.rows, columns, columns}, sums.heads, sums.head_dim};
  seen.memory.data = grown(sums_scratch_, static_cast<size_t>(q.rows * columns) * sizeof(float));
  mark_unseen(seen, stream);
  call.batch = without_first(placed.view, decoding);
  call.covered = placed.covered + decoding;
  call.sums = reinterpret_cast<float*>(seen.memory.data);
  call.sums_stride = columns;
  const size_t bytes = attention_prefill_scratch_bytes();
  const AttentionScratch scratch{grown(prefill_scratch_, bytes, /*zeroed=*/true), bytes};
  attention_prefill(call, unified_, shape.max_rows, scratch, stream);
  cuda::merge_state(seen, sums, stream);
}

void CudaOps::merge_state(const SoftmaxState& seen, const SoftmaxState& sums) {
  cuda::merge_state(seen, sums, queue());
}

void CudaOps::finish_state(const SoftmaxState& sums, const Activations& out) {
  cuda::finish_state(sums, out, queue());
}

void CudaOps::activate(ActivationKind kind, const Activations& x) {
  cuda::activate(kind, x, queue());
}

void CudaOps::gated_activate(ActivationKind kind, const Activations& gate, const Activations& up,
                             const Activations& out) {
  cuda::gated_activate(kind, gate, up, out, queue());
}

void CudaOps::gather_rows(const Activations& x, std::span<const int32_t> rows,
                          const Activations& out) {
  SPW_ASSERT(out.rows == static_cast<int64_t>(rows.size()));
  if (rows.empty()) return;
  if (collecting_ && x.rows == 1 && step_.defer_copy({x, out})) return;
  const cudaStream_t stream = queue();
  cuda::gather_rows(x, tables_.device_of(rows), out, stream);
}

void CudaOps::copy(const Activations& from, const Activations& to) {
  cuda::copy_rows(from, to, queue());
}

void CudaOps::score(const Activations& logits, std::span<const int32_t> ids,
                    std::span<TokenScore> scores) {
  SPW_ASSERT(logits.rows == static_cast<int64_t>(ids.size()) && ids.size() == scores.size());
  for (const int32_t id : ids) SPW_ASSERT(id >= 0 && id < logits.cols);
  auto* const given = reinterpret_cast<int32_t*>(exchange(ids.size_bytes() + scores.size_bytes()));
  auto* const found = reinterpret_cast<TokenScore*>(given + ids.size());
  std::ranges::copy(ids, given);
  cuda::score(logits, given, found, queue());
  SPW_CUDA_CHECK(cudaStreamSynchronize(stream_));
  std::copy_n(found, scores.size(), scores.begin());
}

void CudaOps::sample(const Activations& logits, std::span<const SampleRow> rows,
                     std::span<SampledToken> tokens) {
  SPW_ASSERT(logits.rows == static_cast<int64_t>(rows.size()) && tokens.size() == rows.size());
  std::vector<LogprobsRow> asking;
  size_t adjustments = 0;
  int32_t most_likely = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    adjustments += rows[i].adjustments.size();
    if (rows[i].logprobs < 0) continue;
    SPW_ASSERT(rows[i].logprobs <= kMostLogprobs);
    const auto count = static_cast<int32_t>(std::min<int64_t>(rows[i].logprobs, logits.cols));
    asking.push_back({static_cast<int32_t>(i), count, most_likely});
    most_likely += count;
  }
  Arrays memory{exchange(rows.size() * (sizeof(SampleRowArgs) + sizeof(int32_t)) +
                         adjustments * (sizeof(LogitAdjustment) + sizeof(ReplacedLogit)) +
                         asking.size() * (sizeof(LogprobsRow) + sizeof(float)) +
                         static_cast<size_t>(most_likely) * sizeof(TokenLogprob))};
  auto* const args = memory.take<SampleRowArgs>(rows.size());
  auto* const all_adjustments = memory.take<LogitAdjustment>(adjustments);
  auto* const replaced = memory.take<ReplacedLogit>(adjustments);
  auto* const ids = memory.take<int32_t>(rows.size());
  auto* const logprobs_rows = memory.take<LogprobsRow>(asking.size());
  auto* const chosen = memory.take<float>(asking.size());
  auto* const top = memory.take<TokenLogprob>(static_cast<size_t>(most_likely));
  int32_t first = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    const SampleRow& row = rows[i];
    const auto count = static_cast<int32_t>(row.adjustments.size());
    args[i] = {row.temperature, row.top_p, row.min_p, row.top_k, row.uniform, first, count};
    std::ranges::copy(row.adjustments, all_adjustments + first);
    first += count;
  }
  std::ranges::copy(asking, logprobs_rows);

  const cudaStream_t stream = queue();
  // Logprobs are of the unadjusted logits, so sample() keeps the old values of those that it
  // adjusts and restores them.
  cuda::sample(logits, args, adjustments == 0 ? nullptr : all_adjustments,
               asking.empty() || adjustments == 0 ? nullptr : replaced, ids, stream);
  cuda::logprobs(logits, static_cast<int64_t>(asking.size()), logprobs_rows, ids, chosen, top,
                 stream);
  SPW_CUDA_CHECK(cudaStreamSynchronize(stream_));
  for (size_t i = 0; i < rows.size(); ++i) tokens[i] = {.id = ids[i], .logprobs = {}};
  for (size_t i = 0; i < asking.size(); ++i) {
    SampledToken& token = tokens[static_cast<size_t>(asking[i].row)];
    if (token.id < 0) continue;
    const TokenLogprob* const own = top + asking[i].first;
    token.logprobs = {.chosen = chosen[i], .top = {own, own + asking[i].count}};
  }
}

const float* CudaOps::constant(std::span<const float> values) {
  for (const Constant& known : constants_) {
    if (std::equal(known.values.begin(), known.values.end(), values.begin(), values.end()))
      return reinterpret_cast<const float*>(known.on_device.data());
  }
  Constant added{{values.begin(), values.end()},
                 device_.allocate(values.size_bytes(), MemoryTag::kWorkspace)};
  device_.copy_to_device(added.on_device.data(), reinterpret_cast<const std::byte*>(values.data()),
                         values.size_bytes());
  constants_.push_back(std::move(added));
  return reinterpret_cast<const float*>(constants_.back().on_device.data());
}

}  // namespace spillway::cuda
