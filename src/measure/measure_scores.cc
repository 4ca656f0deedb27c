// SPDX-License-Identifier: Apache-2.0
#include "measure/measure_scores.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/error.h"
#include "runtime/lone_sequence.h"
#include "tensor/half.h"
#include "tensor/kv_format.h"

namespace spillway {
namespace {

constexpr int64_t kRowsPerStep = 8;  // spread over the chunk; each is compared with every key

// Copies bytes of any memory to memory that the host can read.
std::vector<std::byte> on_host(Device& device, const std::byte* from, size_t bytes) {
  std::vector<std::byte> copy(bytes);
  device.copy_to_host(copy.data(), from, bytes);
  return copy;
}

float element(DType type, const std::byte* row, int64_t i) {
  switch (type) {
    case DType::kF32:
      return reinterpret_cast<const float*>(row)[i];
    case DType::kF16:
      return to_float(reinterpret_cast<const Half*>(row)[i]);
    case DType::kBF16:
      return to_float(reinterpret_cast<const BFloat16*>(row)[i]);
    default:
      fail(ErrorCode::kInternal, "internal error: activations of type {}", dtype_name(type));
  }
}

class ScoreCollector {
 public:
  explicit ScoreCollector(Device& device) : device_(device) {}

  void look_at(const Activations& q, const KvLayerView& kv, std::span<const SequenceSpan> spans,
               const AttentionParams& params) {
    for (const SequenceSpan& span : spans) {
      const std::vector<float> keys = read_keys(kv, span);
      const int64_t step = std::max<int64_t>(1, span.rows / kRowsPerStep);
      for (int64_t row = span.rows - 1; row >= 0; row -= step)
        look_at_row(q.row_range(span.first_row + row, 1), kv, keys, span.start + row + 1, params);
    }
  }

  ScoreRange range() const {
    ScoreRange range = range_;
    if (count_ > 0) range.mean = sum_ / static_cast<double>(count_);
    return range;
  }

 private:
  // Returns the keys [tokens, kv_heads, head_dim] of a span.
  std::vector<float> read_keys(const KvLayerView& kv, const SequenceSpan& span) {
    const KvPageLayout layout(kv.type, kv.head_dim);
    const int64_t tokens = span.start + span.rows;
    std::vector<float> keys(static_cast<size_t>(tokens * kv.kv_heads * kv.head_dim));
    for (int64_t first = 0; first < tokens; first += kKvBlockTokens) {
      const int64_t block = span.block_table[static_cast<size_t>(first / kKvBlockTokens)];
      const auto pages =
          on_host(device_, kv.k + block * kv.block_bytes(), static_cast<size_t>(kv.block_bytes()));
      for (int64_t t = first; t < std::min(tokens, first + kKvBlockTokens); ++t) {
        for (int64_t head = 0; head < kv.kv_heads; ++head) {
          float* const key = keys.data() + (t * kv.kv_heads + head) * kv.head_dim;
          load_kv_reference(layout, KvPart::kKeys, pages.data() + head * layout.bytes,
                            static_cast<int>(t - first), key);
        }
      }
    }
    return keys;
  }

  void look_at_row(const Activations& q, const KvLayerView& kv, const std::vector<float>& keys,
                   int64_t visible, const AttentionParams& params) {
    const auto stored = on_host(device_, q.data, static_cast<size_t>(row_bytes(q.dtype, q.cols)));
    const int64_t group = params.heads / kv.kv_heads;
    const int64_t from = params.window > 0 ? std::max<int64_t>(0, visible - params.window) : 0;
    for (int64_t head = 0; head < params.heads; ++head) {
      float top = -std::numeric_limits<float>::infinity();
      for (int64_t t = from; t < visible; ++t) {
        const float* const key = keys.data() + (t * kv.kv_heads + head / group) * kv.head_dim;
        float score = 0;
        for (int64_t i = 0; i < kv.head_dim; ++i)
          score += element(q.dtype, stored.data(), head * kv.head_dim + i) * key[i];
        score *= params.scale;
        if (!std::isfinite(score)) continue;
        add(score);
        top = std::max(top, score);
      }
      if (!std::isfinite(top)) continue;
      range_.lowest_top = range_.rows == 0 ? top : std::min(range_.lowest_top, top);
      ++range_.rows;
    }
  }

  void add(float score) {
    range_.lowest = count_ == 0 ? score : std::min(range_.lowest, score);
    range_.highest = count_ == 0 ? score : std::max(range_.highest, score);
    sum_ += score;
    ++count_;
  }

  Device& device_;
  ScoreRange range_;
  double sum_ = 0;
  int64_t count_ = 0;
};

}  // namespace

ScoreRange measure_scores(Decoder& decoder, KvCache& kv, std::span<const int32_t> tokens) {
  const auto total = static_cast<int64_t>(tokens.size());
  SPW_CHECK(total > 1, kInvalidArgument, "{} tokens to look at scores of; give 2 or more", total);
  LoneSequence sequence(kv, decoder, total);
  ScoreCollector collector(decoder.device());
  decoder.observe_attention([&](const auto&... args) { collector.look_at(args...); });
  for (int64_t start = 0; start < total;) {
    const int64_t count = std::min<int64_t>(decoder.max_tokens(), total - start);
    const StepSequence part = sequence.part(
        tokens.subspan(static_cast<size_t>(start), static_cast<size_t>(count)), start, 0);
    decoder.step(kv, {&part, 1});
    start += count;
  }
  decoder.observe_attention(nullptr);
  return collector.range();
}

}  // namespace spillway
