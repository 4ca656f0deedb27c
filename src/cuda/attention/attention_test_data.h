// SPDX-License-Identifier: Apache-2.0
// Random batches over paged KV for tests of the attention kernels, on the host and on the GPU, and
// the results of attention in double precision.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "cuda/attention/attention_call.h"
#include "cuda/cuda_error.h"
#include "tensor/half.h"

namespace spillway::cuda {

inline bool has_gpu() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess && count > 0;
}

// Bytes on the GPU between guard bytes that must not change.
class GuardedBuffer {
 public:
  explicit GuardedBuffer(const std::vector<std::byte>& bytes) : bytes_(bytes.size()) {
    void* data = nullptr;
    SPW_CUDA_CHECK(cudaMalloc(&data, bytes_ + 2 * kGuard));
    data_ = static_cast<std::byte*>(data);
    SPW_CUDA_CHECK(cudaMemset(data_, 0xa5, bytes_ + 2 * kGuard));
    if (bytes_ > 0) SPW_CUDA_CHECK(cudaMemcpy(get(), bytes.data(), bytes_, cudaMemcpyHostToDevice));
  }
  template <class T>
  static GuardedBuffer of(const std::vector<T>& values) {
    std::vector<std::byte> bytes(values.size() * sizeof(T));
    if (!bytes.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
    return GuardedBuffer(bytes);
  }
  GuardedBuffer(const GuardedBuffer&) = delete;
  GuardedBuffer& operator=(const GuardedBuffer&) = delete;
  ~GuardedBuffer() { (void)cudaFree(data_); }

  std::byte* get() const { return data_ + kGuard; }
  std::vector<std::byte> read() const {
    SPW_CUDA_CHECK(cudaDeviceSynchronize());
    std::vector<std::byte> all(bytes_ + 2 * kGuard);
    SPW_CUDA_CHECK(cudaMemcpy(all.data(), data_, all.size(), cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < kGuard; ++i) {
      EXPECT_EQ(all[i], std::byte{0xa5}) << "before the buffer, at " << i;
      EXPECT_EQ(all[kGuard + bytes_ + i], std::byte{0xa5}) << "behind the buffer, at " << i;
    }
    return {all.begin() + kGuard, all.end() - kGuard};
  }

 private:
  static constexpr size_t kGuard = 512;
  size_t bytes_;
  std::byte* data_ = nullptr;
};

inline void put_element(std::byte* row, DType type, int64_t i, float x) {
  if (type == DType::kF32) {
    std::memcpy(row + 4 * i, &x, 4);
  } else {
    const uint16_t bits = type == DType::kF16 ? to_half(x).bits : to_bfloat16(x).bits;
    std::memcpy(row + 2 * i, &bits, 2);
  }
}
inline float get_element(const std::byte* row, DType type, int64_t i) {
  if (type == DType::kF32) {
    float x;
    std::memcpy(&x, row + 4 * i, 4);
    return x;
  }
  uint16_t bits;
  std::memcpy(&bits, row + 2 * i, 2);
  return type == DType::kF16 ? to_float(Half{bits}) : to_float(BFloat16{bits});
}

struct SequenceCase {
  int start;
  int rows;
};

struct AttentionCase {
  KvType kv_type = KvType::kF16;
  DType dtype = DType::kF16;
  int heads = 4;
  int kv_heads = 2;
  int head_dim = 64;
  int window = 0;
  float score_size = 2;  // standard deviation of scores
  std::vector<SequenceCase> sequences;
  // This is added to the score of every query with the key at the position.
  float (*shift)(int position) = nullptr;
  int together = 0;  // as in AttentionCall
};

// A batch with shuffled pages. Memory that no token has written is NaN.
class AttentionBatch {
 public:
  explicit AttentionBatch(const AttentionCase& c, unsigned seed = 1)
      : case_(c), layout_(c.kv_type, c.head_dim), generator_(seed) {
    int blocks = 3;
    size_t longest = 0;
    for (const SequenceCase& s : c.sequences) {
      const int needed = (s.start + s.rows + kKvBlockTokens - 1) / kKvBlockTokens;
      blocks += needed;
      longest = std::max(longest, static_cast<size_t>(needed));
    }
    std::vector<int32_t> order(static_cast<size_t>(blocks));
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), generator_);
    stride_ = longest + 2;
    table.assign(stride_ * c.sequences.size(), 0x3fffffff);
    const int64_t block_bytes = c.kv_heads * layout_.bytes;
    k.assign(static_cast<size_t>(blocks * block_bytes), std::byte{0xff});
    v = k;
    blocks_ = blocks;

    int rows = 1;  // one row at each end belongs to no sequence
    size_t next = 0;
    for (size_t s = 0; s < c.sequences.size(); ++s) {
      first_row.push_back(rows);
      count.push_back(c.sequences[s].rows);
      start.push_back(c.sequences[s].start);
      rows += c.sequences[s].rows;
      const int context = c.sequences[s].start + c.sequences[s].rows;
      for (int b = 0; b * kKvBlockTokens < context; ++b) table[s * stride_ + b] = order[next++];
    }
    rows_ = rows + 1;
    columns_ = c.heads * c.head_dim;
    q_stride_ = columns_ + 2 * c.kv_heads * c.head_dim;
    q.assign(static_cast<size_t>(rows_ * q_stride_ * element_size()), std::byte{0});
    std::normal_distribution<float> normal(0, 1);
    const float size = std::sqrt(c.score_size);
    for (int64_t i = 0; i < rows_ * q_stride_; ++i)
      put_element(q.data(), c.dtype, i, size * normal(generator_));
    // If scores are shifted, queries have a 1 in element 0, and keys the shift.
    if (c.shift != nullptr) {
      for (int64_t r = 0; r < rows_; ++r)
        for (int h = 0; h < c.heads; ++h)
          put_element(q.data(), c.dtype, r * q_stride_ + int64_t{h} * c.head_dim, 1);
    }
    std::vector<float> x(static_cast<size_t>(c.head_dim));
    for (size_t s = 0; s < c.sequences.size(); ++s) {
      for (int p = 0; p < c.sequences[s].start + c.sequences[s].rows; ++p) {
        for (int h = 0; h < c.kv_heads; ++h) {
          for (float& e : x) e = size * normal(generator_);
          if (c.shift != nullptr) x[0] = c.shift(p) / scale();
          store_kv_reference(layout_, KvPart::kKeys, x.data(), page(k, s, p, h),
                             p % kKvBlockTokens);
          for (float& e : x) e = normal(generator_);
          store_kv_reference(layout_, KvPart::kValues, x.data(), page(v, s, p, h),
                             p % kKvBlockTokens);
        }
      }
    }
  }

  float scale() const { return 1 / std::sqrt(static_cast<float>(case_.head_dim)); }
  int element_size() const { return case_.dtype == DType::kF32 ? 4 : 2; }
  std::byte* page(std::vector<std::byte>& plane, size_t s, int position, int head) {
    const int64_t block = table[s * stride_ + static_cast<size_t>(position / kKvBlockTokens)];
    return plane.data() + (block * case_.kv_heads + head) * layout_.bytes;
  }

  // Sets element d of the key or value that every kv head has at a position of sequence s. Rows
  // before it are not compared after that: those of the same chunk may have met it.
  void put(KvPart part, size_t s, int position, int d, float value) {
    std::vector<float> x(static_cast<size_t>(case_.head_dim));
    for (int h = 0; h < case_.kv_heads; ++h) {
      std::byte* const at = page(part == KvPart::kKeys ? k : v, s, position, h);
      load_kv_reference(layout_, part, at, position % kKvBlockTokens, x.data());
      x[static_cast<size_t>(d)] = value;
      store_kv_reference(layout_, part, x.data(), at, position % kKvBlockTokens);
    }
    changed_ = {s, position};
  }
  // Sets an element of one head of one of the sequence's rows.
  void put_query(size_t s, int row, int head, int d, float value) {
    put_element(q.data(), case_.dtype,
                (first_row[s] + row) * q_stride_ + int64_t{head} * case_.head_dim + d, value);
  }

  // Runs `attend` on copies on the GPU and compares with double precision: no element of a row may
  // differ by more than `tolerance` times the largest value that there is, and NaN must be NaN.
  template <class Attend>
  void expect_close(double tolerance, const Attend& attend) {
    const GuardedBuffer q_gpu(q), k_gpu(k), v_gpu(v);
    const GuardedBuffer first_gpu = GuardedBuffer::of(first_row),
                        rows_gpu = GuardedBuffer::of(count), start_gpu = GuardedBuffer::of(start),
                        table_gpu = GuardedBuffer::of(table);
    const int64_t out_stride = columns_ + 24;
    const GuardedBuffer out_gpu(std::vector<std::byte>(
        static_cast<size_t>(rows_ * out_stride * element_size()), std::byte{0xff}));
    AttentionCall call;
    call.q = {case_.dtype, rows_, columns_, q_stride_, q_gpu.get()};
    call.out = {case_.dtype, rows_, columns_, out_stride, out_gpu.get()};
    call.kv = {case_.kv_type, blocks_, case_.kv_heads, case_.head_dim, k_gpu.get(), v_gpu.get()};
    const auto ints = [](const GuardedBuffer& b) {
      return reinterpret_cast<const int32_t*>(b.get());
    };
    call.batch = {static_cast<int>(count.size()),
                  ints(first_gpu),
                  ints(rows_gpu),
                  ints(start_gpu),
                  ints(table_gpu),
                  static_cast<int>(stride_)};
    call.params = {case_.heads, scale(), case_.window};
    call.together = case_.together;
    attend(call);
    EXPECT_EQ(q_gpu.read(), q);
    EXPECT_EQ(k_gpu.read(), k);
    EXPECT_EQ(v_gpu.read(), v);
    const std::vector<std::byte> out = out_gpu.read();
    const auto is_untouched = [&](int64_t i) {
      for (int b = 0; b < element_size(); ++b)
        if (out[static_cast<size_t>(i * element_size() + b)] != std::byte{0xff}) return false;
      return true;
    };
    for (int64_t r = 0; r < rows_; ++r) {
      const bool is_unused = r == 0 || r == rows_ - 1;
      for (int64_t i = is_unused ? 0 : columns_; i < out_stride; ++i)
        ASSERT_TRUE(is_untouched(r * out_stride + i)) << "row " << r << ", element " << i;
    }
    for (size_t s = 0; s < count.size(); ++s) {
      // Compares all rows of short chunks, and some of long ones.
      const int step = std::max(1, count[s] / 24);
      for (int r = 0; r < count[s];
           r = r + 1 == count[s] ? count[s] : std::min(r + step, count[s] - 1)) {
        for (int h = 0; h < case_.heads; ++h) {
          double largest = 0;
          const std::vector<double> expected = reference(s, r, h, largest);
          const bool any_nan =
              std::any_of(expected.begin(), expected.end(), [](double x) { return std::isnan(x); });
          const int64_t at = (first_row[s] + r) * out_stride + int64_t{h} * case_.head_dim;
          for (int d = 0; d < case_.head_dim; ++d) {
            const double got = get_element(out.data(), case_.dtype, at + d);
            if (changed_.sequence == s && start[s] + r < changed_.position) continue;
            if (std::isnan(expected[static_cast<size_t>(d)])) {
              ASSERT_TRUE(std::isnan(got)) << "sequence " << s << ", row " << r << ", head " << h
                                           << ", dim " << d << ": " << got << " for NaN";
              continue;
            }
            // A NaN may spread to the rest of its head: the row is lost anyway.
            if (std::isnan(got) && any_nan) continue;
            ASSERT_LE(std::abs(got - expected[static_cast<size_t>(d)]), tolerance * largest)
                << "sequence " << s << " (start " << start[s] << ", rows " << count[s] << "), row "
                << r << ", head " << h << ", dim " << d << ": " << got << " for "
                << expected[static_cast<size_t>(d)];
          }
        }
      }
    }
  }

  std::vector<std::byte> q, k, v;
  std::vector<int32_t> first_row, count, start, table;

 private:
  std::vector<double> reference(size_t s, int row, int head, double& largest) {
    const int dim = case_.head_dim, end = start[s] + row + 1;
    const int begin = case_.window > 0 ? std::max(0, end - case_.window) : 0;
    const int kv_head = head / (case_.heads / case_.kv_heads);
    std::vector<double> scores, out(static_cast<size_t>(dim));
    std::vector<float> x(static_cast<size_t>(dim));
    for (int p = begin; p < end; ++p) {
      load_kv_reference(layout_, KvPart::kKeys, page(k, s, p, kv_head), p % kKvBlockTokens,
                        x.data());
      double score = 0;
      for (int d = 0; d < dim; ++d) {
        score += static_cast<double>(
                     get_element(q.data(), case_.dtype,
                                 (first_row[s] + row) * q_stride_ + int64_t{head} * dim + d)) *
                 x[static_cast<size_t>(d)];
      }
      scores.push_back(score * scale());
    }
    const double top = *std::max_element(scores.begin(), scores.end());
    double sum = 0;
    for (double& score : scores) sum += score = std::exp(score - top);
    for (int p = begin; p < end; ++p) {
      load_kv_reference(layout_, KvPart::kValues, page(v, s, p, kv_head), p % kKvBlockTokens,
                        x.data());
      for (int d = 0; d < dim; ++d) {
        out[static_cast<size_t>(d)] +=
            scores[static_cast<size_t>(p - begin)] / sum * x[static_cast<size_t>(d)];
        largest = std::max(largest, std::abs(static_cast<double>(x[static_cast<size_t>(d)])));
      }
    }
    return out;
  }

  AttentionCase case_;
  KvPageLayout layout_;
  std::mt19937 generator_;
  size_t stride_ = 0;
  struct {
    size_t sequence = ~size_t{0};
    int position = 0;
  } changed_;
  int64_t blocks_ = 0, rows_ = 0, columns_ = 0, q_stride_ = 0;
};

// A NaN, an infinity, or a number that KV pages cannot hold, to be put into a batch.
struct WrongNumber {
  enum Where { kQuery, kKey, kValue } where;
  float value;

  // Puts it into the last row of sequence s or, with `in_front`, at an earlier position.
  void put_into(AttentionBatch& batch, size_t s, bool in_front) const {
    const int position = batch.start[s] + batch.count[s] - 1;
    if (where == kQuery) {
      batch.put_query(s, batch.count[s] - 1, 0, 3, value);
    } else {
      batch.put(where == kKey ? KvPart::kKeys : KvPart::kValues, s,
                in_front ? position / 2 : position, 3, value);
    }
  }
};
inline std::vector<WrongNumber> wrong_numbers() {
  const float infinity = std::numeric_limits<float>::infinity(), nan = NAN;
  std::vector<WrongNumber> all;
  for (const auto where : {WrongNumber::kQuery, WrongNumber::kKey, WrongNumber::kValue})
    for (const float value : {nan, infinity, -infinity}) all.push_back({where, value});
  all.push_back({WrongNumber::kKey, 1e30F});
  all.push_back({WrongNumber::kValue, -1e30F});
  return all;
}

// Calls `check` with a case for every type of KV and head size, and with a function that puts a
// wrong number into the batch's second sequence.
template <class Check>
void for_each_wrong_number(const Check& check) {
  for (const KvType type : kAllKvTypes) {
    for (const int dim : {64, 128, 80}) {
      for (const WrongNumber& wrong : wrong_numbers()) {
        // F32 and BF16 hold large numbers, so the result is a number, beyond the bound that results
        // are compared with.
        const bool holds = type == KvType::kF32 || type == KvType::kBf16;
        if (holds && std::isfinite(wrong.value)) continue;
        for (const bool in_front : {false, true}) {
          if (in_front && wrong.where == WrongNumber::kQuery) continue;
          SCOPED_TRACE(testing::Message() << kv_type_name(type) << ", head dim " << dim << ": "
                                          << wrong.value << " in " << wrong.where);
          check(AttentionCase{.kv_type = type, .heads = 4, .kv_heads = 2, .head_dim = dim},
                [&](AttentionBatch& batch) { wrong.put_into(batch, 1, in_front); });
          if (testing::Test::HasFatalFailure()) return;
        }
      }
    }
  }
}

// Calls `check` with a case for every type of activations over every type of KV.
template <class Check>
void for_each_type(const Check& check) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const KvType type : kAllKvTypes) {
      SCOPED_TRACE(testing::Message() << dtype_name(dtype) << " over " << kv_type_name(type));
      check(AttentionCase{
          .kv_type = type, .dtype = dtype, .heads = 6, .kv_heads = 2, .head_dim = 64});
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

// Returns the error that rounding of queries, exponentials and outputs may cause.
inline double attention_tolerance(const AttentionCase& c) {
  // Scores of hundreds are themselves exact only to hundreds of F32 roundings; int4 rounds rotated
  // queries, whose error grows with the keys.
  if (c.shift != nullptr && c.dtype == DType::kF32) return 1e-3;
  if (c.shift != nullptr && c.kv_type == KvType::kInt4) return 2e-2;
  if (c.dtype == DType::kF32) return 2e-5;
  if (c.kv_type == KvType::kBf16) return 1e-2;  // queries and exponentials are BF16, too
  if (c.shift != nullptr) return 4e-3;
  if (c.dtype == DType::kBF16) return 6e-3;
  return is_quantized(c.kv_type) ? 4e-3 : 1.5e-3;
}

}  // namespace spillway::cuda
