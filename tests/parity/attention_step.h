// SPDX-License-Identifier: Apache-2.0
// One step of attention on a device under test: random sequences, appended to shuffled pages.
#pragma once

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "tests/parity/paged_kv.h"
#include "tests/parity/references.h"

namespace spillway::parity {

struct AttentionCase {
  int heads = 4, kv_heads = 2, head_dim = 64;
  int window = 0;
  KvType type = KvType::kF16;
  float deviation = 1;  // of q and k: large values make one-hot softmaxes
  float top_k = 0;
  bool equal_keys = false;   // all tokens of a sequence have the same key
  DType rows = DType::kF32;  // of q, k, v and the result
};

// Whether the device takes heads of odd sizes.
inline bool takes_odd_heads(const DeviceKind& kind) { return kind.any_alignment; }
inline constexpr const char* kWholeHeadsOnly =
    "it takes heads of a multiple of 8 elements, at most 256";

// Returns the largest NMSE allowed against double precision over what is stored: the error of the
// arithmetic alone.
inline double bar_of(KvType type) {
  if (type == KvType::kF32) return kFloatBar;
  return is_half(type) ? 1e-5 : 1e-4;
}
inline double bar_of(const AttentionCase& c) { return bar_of(c.type) + rounding_bar(c.rows); }

// A step in which each sequence has some tokens in the cache already, and its last `rows` tokens in
// the step.
class AttentionStep {
 public:
  struct Sequence {
    int32_t old_tokens, rows;
    std::vector<float> k, v;
    std::vector<int32_t> table;
  };

  // Changes queries [rows, heads * head_dim], or keys and values, before anything is appended.
  using Change = std::function<void(std::vector<float>& q, std::vector<Sequence>& sequences)>;

  // lengths: {old tokens, rows} of each sequence.
  AttentionStep(TestDevice& device, const AttentionCase& c,
                const std::vector<std::pair<int32_t, int32_t>>& lengths,
                const Change& change = nullptr)
      : device_(device),
        case_(c),
        kv_(device, c.type, c.kv_heads, c.head_dim, kSpareBlocks + blocks_of(lengths)) {
    const int64_t width = int64_t{c.kv_heads} * c.head_dim;
    uint32_t seed = 1;
    for (const auto& [old_tokens, new_rows] : lengths) {
      const int64_t total = old_tokens + new_rows;
      sequences_.push_back({old_tokens, new_rows, random_floats(total * width, ++seed, c.deviation),
                            random_floats(total * width, ++seed), kv_.take_blocks(total)});
      if (c.equal_keys) {
        std::vector<float>& k = sequences_.back().k;
        for (size_t i = static_cast<size_t>(width); i < k.size(); ++i)
          k[i] = k[i - static_cast<size_t>(width)];
      }
      rows_ += new_rows;
    }
    queries_ = random_floats(rows_ * q_width(), 77, c.deviation);
    if (change) change(queries_, sequences_);
    queries_ = rounded(std::move(queries_), c.rows);
    for (Sequence& s : sequences_) {
      s.k = rounded(std::move(s.k), c.rows);
      s.v = rounded(std::move(s.v), c.rows);
    }
    std::vector<float> k_rows, v_rows;
    int32_t first = 0;
    for (const Sequence& s : sequences_) {
      if (s.old_tokens > 0) {
        const auto old = s.old_tokens * width;
        const Matrix k(device, s.old_tokens, width, {s.k.begin(), s.k.begin() + old}, c.rows);
        const Matrix v(device, s.old_tokens, width, {s.v.begin(), s.v.begin() + old}, c.rows);
        const SequenceSpan span{0, s.old_tokens, 0, s.table};
        device.ops().kv_append(k.view(), v.view(), kv_.view(), {&span, 1});
      }
      k_rows.insert(k_rows.end(), s.k.begin() + s.old_tokens * width, s.k.end());
      v_rows.insert(v_rows.end(), s.v.begin() + s.old_tokens * width, s.v.end());
      spans_.push_back({first, s.rows, s.old_tokens, s.table, {}, /*generates=*/s.rows == 1});
      first += s.rows;
    }
    const Matrix k(device, rows_, width, k_rows, c.rows), v(device, rows_, width, v_rows, c.rows);
    device.ops().kv_append(k.view(), v.view(), kv_.view(), spans_);
  }

  int64_t q_width() const { return int64_t{case_.heads} * case_.head_dim; }
  float scale() const { return 1 / std::sqrt(static_cast<float>(case_.head_dim)); }
  const std::vector<Sequence>& sequences() const { return sequences_; }

  // Returns what the device computes, [rows, heads * head_dim].
  std::vector<float> run(float top_k) { return attend(kv_.view(), spans_, top_k); }
  std::vector<float> run() { return run(case_.top_k); }

  // Returns the same with V of full pages in host memory, for sequences of one row. The device's
  // copy of these pages is overwritten.
  std::vector<float> run_with_values_at_home() {
    KvLayerView view = kv_.view();
    const auto block_bytes = static_cast<size_t>(view.block_bytes());
    const HostPlane plane(device_, block_bytes * static_cast<size_t>(view.blocks));
    const std::vector<std::byte> poison(block_bytes, std::byte{0xff});
    std::vector<std::vector<int32_t>> homes;
    std::vector<SequenceSpan> spans = spans_;
    for (SequenceSpan& span : spans) {
      if (span.rows != 1) continue;
      std::vector<int32_t>& home = homes.emplace_back();
      for (const int32_t block :
           span.block_table.first(static_cast<size_t>(span.start / kKvBlockTokens))) {
        home.push_back(static_cast<int32_t>(view.blocks) - 1 - block);  // another id than here
        std::byte* const here = view.v + block * view.block_bytes();
        device_.download(plane.data() + home.back() * view.block_bytes(), here, block_bytes);
        device_.upload(here, poison.data(), block_bytes);
      }
      span.home = home;
    }
    view.home_v = plane.data();
    view.home_blocks = view.blocks;
    return attend(view, spans, case_.top_k);
  }

  // Returns the same from KV partitions, cut at these positions as far as they are before a
  // sequence's rows. Every other partition is attended to by itself, as by another device, and its
  // softmax state is added.
  std::vector<float> run_in_parts(const std::vector<int32_t>& cuts) {
    const Matrix q(device_, rows_, q_width(), queries_, case_.rows),
        out(device_, rows_, q_width(), case_.rows);
    const Sums sums(*this), elsewhere(*this);
    PartitionedAttention& ops = device_.device().partitioned_attention();
    const AttentionParams params{case_.heads, scale(), case_.window};
    ops.clear_state(sums.view);
    for (size_t part = 0; part <= cuts.size(); ++part) {
      const std::vector<SequenceSpan> spans = spans_of_part(cuts, part);
      const SoftmaxState& to = part % 2 == 1 ? elsewhere.view : sums.view;
      if (part % 2 == 1) ops.clear_state(to);
      ops.attend_partition(q.view(), kv_.view(), spans, params, to);
      if (part % 2 == 1) ops.merge_state(to, sums.view);
    }
    ops.finish_state(sums.view, out.view());
    out.expect_guards();
    return out.read();
  }
  // Returns the same from partitions that are attended to one after the other, with one softmax
  // state.
  std::vector<float> run_one_after_another(const std::vector<int32_t>& cuts) {
    const Matrix q(device_, rows_, q_width(), queries_, case_.rows),
        out(device_, rows_, q_width(), case_.rows);
    const Sums sums(*this);
    PartitionedAttention& ops = device_.device().partitioned_attention();
    const AttentionParams params{case_.heads, scale(), case_.window};
    ops.clear_state(sums.view);
    for (size_t part = 0; part <= cuts.size(); ++part)
      ops.attend_partition(q.view(), kv_.view(), spans_of_part(cuts, part), params, sums.view);
    ops.finish_state(sums.view, out.view());
    return out.read();
  }

  // Returns what the device should compute. `gaps` gets one value per row and head, see
  // attention_reference.
  Doubles expected(Doubles* gaps = nullptr) const {
    Doubles all;
    int64_t row = 0;
    for (const Sequence& s : sequences_) {
      const auto ks = as_stored(case_.type, KvPart::kKeys, case_.head_dim, s.k),
                 vs = as_stored(case_.type, KvPart::kValues, case_.head_dim, s.v);
      for (int64_t i = 0; i < s.rows; ++i, ++row) {
        const Doubles one =
            attention_reference(queries_.data() + row * q_width(), ks, vs, s.old_tokens + i + 1,
                                case_.heads, case_.kv_heads, case_.head_dim, scale(), case_.window,
                                s.rows == 1 ? case_.top_k : 0, gaps);
        all.insert(all.end(), one.begin(), one.end());
      }
    }
    return all;
  }

 private:
  static constexpr int64_t kSpareBlocks = 9;  // that no op may touch, among the others
  static int64_t blocks_of(const std::vector<std::pair<int32_t, int32_t>>& lengths) {
    int64_t blocks = 0;
    for (const auto& [old_tokens, rows] : lengths)
      blocks += (old_tokens + rows + kKvBlockTokens - 1) / kKvBlockTokens;
    return blocks;
  }

  // Returns the spans for a partition, of the sequences whose rows are not before it.
  std::vector<SequenceSpan> spans_of_part(const std::vector<int32_t>& cuts, size_t part) const {
    const int32_t begin = part == 0 ? 0 : cuts[part - 1];
    std::vector<SequenceSpan> spans;
    for (const SequenceSpan& whole : spans_) {
      if (begin > whole.start) continue;
      const bool ends_before = part < cuts.size() && cuts[part] <= whole.start;
      const auto first = static_cast<size_t>(begin / kKvBlockTokens);
      const auto end =
          ends_before ? static_cast<size_t>(cuts[part] / kKvBlockTokens) : whole.block_table.size();
      spans.push_back({whole.first_row, whole.rows, whole.start - begin,
                       whole.block_table.subspan(first, end - first)});
    }
    return spans;
  }

  // Softmax states of all rows, which start poisoned.
  struct Sums {
    Buffer memory;
    SoftmaxState view;

    explicit Sums(AttentionStep& step) {
      const AttentionCase& c = step.case_;
      const int64_t columns = softmax_state_columns(c.heads, c.head_dim);
      const std::vector<float> poison(static_cast<size_t>(step.rows_ * columns), NAN);
      memory =
          step.device_.device().allocate(poison.size() * sizeof(float), MemoryTag::kActivations);
      step.device_.upload(memory.data(), poison.data(), memory.bytes());
      view = {{DType::kF32, step.rows_, columns, columns, memory.data()}, c.heads, c.head_dim};
    }
  };

  // Poisoned host memory that the device can read.
  class HostPlane {
   public:
    HostPlane(TestDevice& device, size_t bytes)
        : device_(device), data_(static_cast<std::byte*>(std::aligned_alloc(kPage, up(bytes)))) {
      std::memset(data_.get(), 0xff, up(bytes));
      EXPECT_TRUE(device_.device().try_pin(data_.get(), up(bytes)));
    }
    ~HostPlane() { device_.device().unpin(data_.get()); }
    HostPlane(const HostPlane&) = delete;
    HostPlane& operator=(const HostPlane&) = delete;
    std::byte* data() const { return data_.get(); }

   private:
    static constexpr size_t kPage = 4096;
    static size_t up(size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }
    struct Free {
      void operator()(std::byte* data) const { std::free(data); }
    };
    TestDevice& device_;
    std::unique_ptr<std::byte, Free> data_;
  };

  std::vector<float> attend(const KvLayerView& view, std::span<const SequenceSpan> spans,
                            float top_k) {
    const Matrix q(device_, rows_, q_width(), queries_, case_.rows),
        out(device_, rows_, q_width(), case_.rows);
    device_.ops().attention(q.view(), view, spans, {case_.heads, scale(), case_.window, top_k},
                            out.view());
    out.expect_guards();
    return out.read();
  }

  TestDevice& device_;
  AttentionCase case_;
  PagedKv kv_;
  std::vector<Sequence> sequences_;
  std::vector<SequenceSpan> spans_;
  std::vector<float> queries_;
  int32_t rows_ = 0;
};

inline testing::Message describe(const AttentionCase& c,
                                 const std::vector<std::pair<int32_t, int32_t>>& lengths) {
  return testing::Message() << c.heads << "/" << c.kv_heads << " heads of " << c.head_dim
                            << ", window " << c.window << ", top-k " << c.top_k << ", "
                            << kv_type_name(c.type) << ", rows of " << dtype_name(c.rows)
                            << ", first sequence " << lengths[0].first << " + "
                            << lengths[0].second;
}

}  // namespace spillway::parity
