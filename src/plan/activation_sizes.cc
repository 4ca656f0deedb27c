// SPDX-License-Identifier: Apache-2.0
#include "plan/activation_sizes.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "plan/weight_homes.h"
#include "storage/aligned_buffer.h"
#include "storage/spill_file.h"
#include "tensor/attention_layout.h"

namespace spillway {
namespace {

uint64_t bytes_of(DType type, int64_t rows, int64_t cols) {
  return static_cast<uint64_t>(row_bytes(type, cols)) * static_cast<uint64_t>(rows);
}

}  // namespace

uint64_t LookedUpRows::position_offset() const { return aligned_weight_bytes(token_row * rows); }

uint64_t LookedUpRows::bytes() const {
  return position_offset() + aligned_weight_bytes(position_row * rows);
}

DecoderBuffers decoder_buffers(const ModelSpec& spec, DType inner, int64_t step_tokens,
                               int64_t micro_tokens, int64_t logit_rows,
                               const LookedUpRows& looked_up) {
  DecoderBuffers all;
  const LoweredModel& lowered = *spec.lowered;
  for (const ScratchBuffer& buffer : lowered.buffers) {
    const DType type = buffer.f32 ? DType::kF32 : inner;
    all.scratch.push_back(std::max(bytes_of(type, micro_tokens, buffer.columns),
                                   bytes_of(type, logit_rows, buffer.head_columns)));
  }
  uint64_t& widest = all.scratch[lowered.widest_buffer()];
  widest = std::max(widest, looked_up.bytes());
  for (const RopeSpec& rope : spec.ropes)
    all.angles.push_back(bytes_of(DType::kF32, step_tokens, rope.dims));
  return all;
}

ResidualSizes ResidualSizes::on(bool host_visible) const {
  ResidualSizes sizes = *this;
  if (host_visible) sizes.device_tokens += std::exchange(sizes.host_tokens, 0);
  sizes.device_tokens = std::min(sizes.device_tokens, sizes.tokens);
  sizes.host_tokens = std::min(sizes.host_tokens, sizes.tokens - sizes.device_tokens);
  return sizes;
}

int64_t ResidualSizes::first_on_host() const {
  return std::max<int64_t>(0, device_tokens - micro_tokens + 1);
}

int64_t ResidualSizes::first_on_disk() const {
  return std::max<int64_t>(0, memory_tokens() - micro_tokens + 1);
}

uint64_t ResidualSizes::row_bytes() const { return bytes_of(DType::kF32, 1, columns); }

uint64_t ResidualSizes::staging_bytes() const {
  return align_up(row_bytes() * static_cast<uint64_t>(micro_tokens)) + kDirectAlignment;
}

ResidualSizes residual_sizes(const TierShares& shares, int64_t step_tokens, int64_t micro_tokens,
                             int64_t hidden) {
  const auto share = [&](double of) {
    return static_cast<int64_t>(std::llround(of * static_cast<double>(step_tokens)));
  };
  const int64_t on_device = share(shares.device);
  return {.tokens = step_tokens,
          .device_tokens = on_device,
          .host_tokens = shares.disk > 0 ? share(shares.host) : step_tokens - on_device,
          .micro_tokens = micro_tokens,
          .columns = hidden};
}

ResidualBytes residual_bytes(const ResidualSizes& sizes, bool host_visible) {
  const uint64_t row = sizes.row_bytes();
  ResidualBytes all;
  all.device_rows = row * static_cast<uint64_t>(sizes.device_tokens);
  if (sizes.device_tokens == sizes.tokens) return all;
  const bool in_place = sizes.has_disk() && host_visible;
  all.slot = in_place ? sizes.staging_bytes() : row * static_cast<uint64_t>(sizes.micro_tokens);
  all.slots = ResidualSizes::slot_count(in_place);
  if (sizes.host_tokens > 0)
    all.host = row * static_cast<uint64_t>(sizes.memory_tokens() - sizes.first_on_host());
  if (sizes.has_disk()) {
    all.disk =
        SpillFile::file_bytes(row, static_cast<uint64_t>(sizes.tokens - sizes.first_on_disk()));
    if (!in_place) all.bounce = sizes.staging_bytes();
  }
  return all;
}

HostLinearBytes host_linear_bytes(const ModelSpec& spec, std::span<const CpuRows> uses) {
  const int64_t widest = spec.widest_input();
  HostLinearBytes bytes;
  for (const auto& [tokens, rows] : uses) {
    bytes.input = std::max(bytes.input, bytes_of(DType::kF32, tokens, widest));
    bytes.output = std::max(bytes.output, bytes_of(DType::kF32, tokens, rows));
  }
  bytes.staging = std::min(kHandOverChunk, std::max(bytes.input, bytes.output));
  return bytes;
}

HostAttentionBytes host_attention_bytes(int64_t q_dim, int64_t kv_dim, DType inner, int64_t rows) {
  const int64_t qkv = q_dim + 2 * kv_dim;
  return {bytes_of(inner, rows, qkv), bytes_of(inner, rows, q_dim),
          bytes_of(DType::kF32, rows, qkv), bytes_of(DType::kF32, rows, q_dim)};
}

uint64_t softmax_state_bytes(int64_t heads, int64_t head_dim, int64_t rows) {
  return bytes_of(DType::kF32, rows, softmax_state_columns(heads, head_dim));
}

}  // namespace spillway
