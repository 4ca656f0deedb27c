// SPDX-License-Identifier: Apache-2.0
#include "runtime/host_attention.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/error.h"
#include "plan/activation_sizes.h"
#include "runtime/kv_swap.h"

namespace spillway {

HostAttention::HostAttention(TransferScheduler& transfers, Device& host, CpuExecutor& executor,
                             DType type, int64_t rows, int64_t q_dim, int64_t kv_dim, bool overlap)
    : device_(transfers.device()),
      host_(host),
      executor_(executor),
      type_(type),
      q_dim_(q_dim),
      kv_dim_(kv_dim),
      overlap_(overlap),
      every_row_(static_cast<size_t>(rows)) {
  SPW_ASSERT(rows > 0 && host.host_visible());
  const HostAttentionBytes bytes = host_attention_bytes(q_dim, kv_dim, type, rows);
  qkv_ = PinnedBuffer(host, device_, bytes.qkv, MemoryTag::kStaging);
  attended_ = PinnedBuffer(host, device_, bytes.attended, MemoryTag::kStaging);
  floats_ = host.allocate(bytes.qkv_floats, MemoryTag::kActivations);
  attended_floats_ = host.allocate(bytes.attended_floats, MemoryTag::kActivations);
  std::iota(every_row_.begin(), every_row_.end(), 0);
  side_ = transfers.open_awaited(TransferUse::kAttention, LinkDirection::kToHost);
  made_ = device_.make_event();
  ready_ = device_.make_signal();
}

// Ops may still be reading the result.
HostAttention::~HostAttention() { executor_.reset(); }

Activations HostAttention::as_floats(const Activations& x, Buffer& buffer) {
  if (x.dtype == DType::kF32) return x;
  const Activations floats{DType::kF32, x.rows, x.cols, x.cols, buffer.data()};
  host_.ops().gather_rows(x, std::span(every_row_).first(static_cast<size_t>(x.rows)), floats);
  return floats;
}

namespace {

// Written without a branch, so that many values are compared at a time: one thread does this in
// every layer.
bool has_largest_half(const uint16_t* halves, int64_t count) {
  constexpr uint16_t kWithoutSign = 0x7fff, kLargest = 0x7bff;
  uint16_t any = 0;
  for (int64_t i = 0; i < count; ++i) any |= (halves[i] & kWithoutSign) == kLargest ? 1 : 0;
  return any != 0;
}

}  // namespace

// Conversions to F16 saturate: a value of the largest magnitude was larger before. It is stored as
// NaN and reported as a fault.
void HostAttention::find_saturated(const Activations& halves, const Activations& x, KvFault fault) {
  constexpr float kLargestHalf = 65504;
  for (int64_t row = 0; row < x.rows; ++row) {
    const std::byte* const stored = halves.row_range(row, 1).data;
    if (!has_largest_half(reinterpret_cast<const uint16_t*>(stored), x.cols)) continue;
    float* const values = x.f32(row);
    for (int64_t i = 0; i < x.cols; ++i) {
      if (std::fabs(values[i]) != kLargestHalf) continue;
      values[i] = std::numeric_limits<float>::quiet_NaN();
      fault_ = fault;
    }
  }
}

void HostAttention::prepare_partitions(int heads) {
  if (heads_ == heads) return;
  SPW_ASSERT(heads_ == 0 && q_dim_ % heads == 0);
  const uint64_t bytes =
      softmax_state_bytes(heads, q_dim_ / heads, static_cast<int64_t>(every_row_.size()));
  seen_ = PinnedBuffer(host_, device_, bytes, MemoryTag::kStaging);
  if (!seen_.is_pinned() || !device_.reads_pinned_memory())
    arrived_ = device_.allocate(bytes, MemoryTag::kStaging);
  heads_ = heads;
}

SoftmaxState HostAttention::host_state(int64_t rows) const {
  const int64_t dim = q_dim_ / heads_, columns = softmax_state_columns(heads_, dim);
  return {{DType::kF32, rows, columns, columns, seen_.data()}, heads_, static_cast<int>(dim)};
}

// Runs on the CPU executor, the only user of the host's ops meanwhile.
void HostAttention::compute(const KvLayerView& kv, const HostRows& rows,
                            const AttentionParams& params, bool appends) {
  const auto begin = std::chrono::steady_clock::now();
  const int64_t kv_dim = int64_t{kv.kv_heads} * kv.head_dim;
  const int64_t columns = q_dim_ + (appends ? 2 * kv_dim : 0);
  const Activations stored{type_, rows.rows, columns, columns, qkv_.data()};
  const Activations all = as_floats(stored, floats_);
  const Activations q = all.columns(0, q_dim_);
  if (appends) {
    const Activations k = all.columns(q_dim_, kv_dim), v = all.columns(q_dim_ + kv_dim, kv_dim);
    if (type_ == DType::kF16) {
      find_saturated(stored.columns(q_dim_, kv_dim), k, {kv.layer, KvPart::kKeys, true});
      find_saturated(stored.columns(q_dim_ + kv_dim, kv_dim), v, {kv.layer, KvPart::kValues, true});
    }
    host_.ops().kv_append(k, v, kv, rows.written);
  }
  if (rows.shared_rows > 0) {
    PartitionedAttention& attention = host_.partitioned_attention();
    const SoftmaxState sums = host_state(rows.shared_rows);
    attention.clear_state(sums);
    attention.attend_partition(q.row_range(0, rows.shared_rows), kv, rows.shared, params, sums);
  }
  if (!rows.spans.empty()) {
    const Activations result{type_, rows.rows, q_dim_, q_dim_, attended_.data()};
    if (type_ == DType::kF32) {
      host_.ops().attention(q, kv, rows.spans, params, result);
    } else {
      const Activations floats{DType::kF32, rows.rows, q_dim_, q_dim_, attended_floats_.data()};
      host_.ops().attention(q, kv, rows.spans, params, floats);
      const auto whole = std::span(every_row_)
                             .subspan(static_cast<size_t>(rows.shared_rows),
                                      static_cast<size_t>(rows.rows - rows.shared_rows));
      host_.ops().gather_rows(floats, whole,
                              result.row_range(rows.shared_rows, rows.rows - rows.shared_rows));
    }
  }
  for (const auto* spans : {&rows.shared, &rows.spans}) {
    for (const SequenceSpan& span : *spans) {
      const auto covered = static_cast<int64_t>(span.block_table.size()) * kKvBlockTokens;
      stats_.kv_bytes += static_cast<uint64_t>(2 * kv.block_bytes() / kKvBlockTokens) *
                         static_cast<uint64_t>(std::min<int64_t>(span.start + span.rows, covered));
    }
  }
  const auto end = std::chrono::steady_clock::now();
  stats_.compute_s += std::chrono::duration<double>(end - begin).count();
  if (timeline_ != nullptr) timeline_->add(TimelineLane::kCpu, "attention", kv.layer, begin, end);
}

void HostAttention::start(const Activations& qkv, const KvLayerView& kv, const HostRows& rows,
                          const AttentionParams& params, const Activations& out,
                          const SoftmaxState& sums, KvSwap* stores) {
  const bool appends = qkv.stride > q_dim_;
  SPW_ASSERT(rows.rows > 0 && rows.rows <= static_cast<int64_t>(every_row_.size()) &&
             qkv.rows == rows.rows && qkv.dtype == type_ && out.dtype == type_ &&
             qkv.stride == q_dim_ + (appends ? 2 * int64_t{kv.kv_heads} * kv.head_dim : 0) &&
             qkv.stride <= q_dim_ + 2 * kv_dim_ && out.stride == q_dim_ && out.rows == rows.rows &&
             sums.rows() == rows.shared_rows);
  if (rows.shared_rows > 0) prepare_partitions(params.heads);
  const CopyPiece down{qkv_.data(), qkv.data,
                       static_cast<size_t>(row_bytes(type_, rows.rows * qkv.stride))};
  stats_.to_host_bytes += down.bytes;
  device_.compute().record(*made_);
  side_->wait(*made_);
  if (stores != nullptr) stores->wait_for_stores(*side_);
  side_->copy_to_host({&down, 1});
  number_ = executor_.start(
      *side_, *ready_, [this, kv, &rows, params, appends] { compute(kv, rows, params, appends); });
  out_ = out;
  sums_ = sums;
  if (!overlap_) executor_.synchronize();
}

// Ops read the result directly from pinned memory, since a copy would wait for weight copies that
// are already queued on the link.
void HostAttention::finish(StallClock& stalls) {
  stalls.time(StallCause::kHostAttention, [&] { executor_.wait_for_work(number_); });
  const int64_t shared = sums_.rows();
  if (shared > 0) {
    SoftmaxState seen = host_state(shared);
    const auto bytes = static_cast<size_t>(row_bytes(DType::kF32, shared * seen.memory.cols));
    if (!arrived_.empty()) {
      const CopyPiece up{arrived_.data(), seen_.data(), bytes};
      device_.compute().copy_to_device({&up, 1});
      seen.memory.data = arrived_.data();
    }
    device_.partitioned_attention().merge_state(seen, sums_);
    stats_.to_device_bytes += bytes;
  }
  if (shared == out_.rows) return;
  const Activations result{type_, out_.rows, q_dim_, q_dim_, attended_.data()};
  const int64_t whole = out_.rows - shared;
  bring_up(result.row_range(shared, whole), out_.row_range(shared, whole));
}

void HostAttention::bring_up(const Activations& result, const Activations& out) {
  const auto bytes = static_cast<size_t>(row_bytes(type_, out.rows * q_dim_));
  if (attended_.is_pinned() && device_.reads_pinned_memory()) {
    device_.ops().copy(result, out);
  } else {
    const CopyPiece up{out.data, result.data, bytes};
    device_.compute().copy_to_device({&up, 1});
  }
  stats_.to_device_bytes += bytes;
}

HostAttention::Stats& HostAttention::Stats::operator+=(const Stats& other) {
  to_host_bytes += other.to_host_bytes;
  to_device_bytes += other.to_device_bytes;
  kv_bytes += other.kv_bytes;
  compute_s += other.compute_s;
  return *this;
}

}  // namespace spillway
