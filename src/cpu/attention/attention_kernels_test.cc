// SPDX-License-Identifier: Apache-2.0
// Tests every kernel for cuts of the keys that this processor has, whether it is the chosen one or
// not.
#include "cpu/attention/attention_kernels.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "cpu/attention/attention.h"
#include "cpu/cpu_device.h"
#include "tensor/random_fill.h"

namespace spillway {
namespace {

struct KernelCase {
  KvType type;
  int heads, kv_heads, head_dim;
  int32_t start, rows;  // tokens in the cache, and those that attend
  int window = 0;
};

// A sequence in pages in reverse order, of which the last may be partly stored; the rest is poison.
class PagedStep {
 public:
  PagedStep(CpuDevice& device, const KernelCase& c)
      : device_(device),
        case_(c),
        kv_{c.type, (c.start + c.rows) / kKvBlockTokens + 2, c.kv_heads, c.head_dim, nullptr,
            nullptr},
        k_(static_cast<size_t>(kv_.blocks * kv_.block_bytes()), std::byte{0xff}),
        v_(k_),
        q_(random(c.rows, c.heads, 3)),
        keys_(random(c.start + c.rows, c.kv_heads, 1)),
        values_(random(c.start + c.rows, c.kv_heads, 2)) {
    kv_.k = k_.data();
    kv_.v = v_.data();
    for (int64_t i = kv_.blocks - 1; i > 0; --i) table_.push_back(static_cast<int32_t>(i));
  }

  std::vector<float>& q() { return q_; }
  std::vector<float>& keys() { return keys_; }
  std::vector<float>& values() { return values_; }

  // Computes rows [first, first + rows) of the step.
  std::vector<float> run(const cpu::CutKernel& kernel, int32_t first, int32_t rows) {
    const SequenceSpan all{0, case_.start + case_.rows, 0, table_};
    const SequenceSpan span{0, rows, case_.start + first, table_};
    device_.ops().kv_append(view(keys_, case_.start + case_.rows),
                            view(values_, case_.start + case_.rows), kv_, {&all, 1});
    device_.ops().take_kv_fault();
    const auto width = static_cast<int64_t>(case_.heads) * case_.head_dim;
    std::vector<float> q(q_.begin() + first * width, q_.begin() + (first + rows) * width);
    std::vector<float> out(q.size(), NAN);
    const AttentionParams params{case_.heads, 1 / std::sqrt(static_cast<float>(case_.head_dim)),
                                 case_.window};
    Workspace workspace(device_, 1);
    cpu::attention_by(kernel, pool_, workspace, view(q, rows), kv_, {&span, 1}, params,
                      view(out, rows));
    return out;
  }
  std::vector<float> run(const cpu::CutKernel& kernel) { return run(kernel, 0, case_.rows); }

 private:
  std::vector<float> random(int64_t rows, int heads, uint32_t seed) const {
    std::vector<float> x(static_cast<size_t>(rows * heads * case_.head_dim));
    fill_random(DType::kF32, reinterpret_cast<std::byte*>(x.data()), static_cast<int64_t>(x.size()),
                seed, 1);
    return x;
  }
  static Activations view(std::vector<float>& x, int64_t rows) {
    const auto cols = static_cast<int64_t>(x.size()) / rows;
    return {DType::kF32, rows, cols, cols, reinterpret_cast<std::byte*>(x.data())};
  }

  CpuDevice& device_;
  KernelCase case_;
  KvLayerView kv_;
  std::vector<std::byte> k_, v_;
  std::vector<float> q_, keys_, values_;
  std::vector<int32_t> table_;
  ThreadPool pool_{1};
};

// Kernels that only other processors have are skipped, with a message.
class CutKernelTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    for (const KvType type : kAllKvTypes) {
      for (const bool deterministic : {false, true}) {
        if (!kernels(type, deterministic).empty()) return;
      }
    }
    GTEST_SKIP() << "this processor has no kernels called " << GetParam();
  }

  // Returns the kernel of the name for a type: one or none.
  static std::vector<cpu::CutKernel> kernels(KvType type, bool deterministic) {
    std::vector<cpu::CutKernel> found;
    for (const cpu::CutKernel& kernel : cpu::cut_kernels(type, deterministic)) {
      if (kernel.name == std::string_view(GetParam())) found.push_back(kernel);
    }
    return found;
  }

  CpuDevice device_{{.threads = 1}};
};

testing::Message describe(const KernelCase& c) {
  return testing::Message() << kv_type_name(c.type) << ", " << c.heads << "/" << c.kv_heads
                            << " heads of " << c.head_dim << ", " << c.start << " + " << c.rows
                            << ", window " << c.window;
}

TEST_P(CutKernelTest, AgreesWithThePortableOne) {
  const std::string_view name = GetParam();
  // The limits are for sums in another order, for 16-bit queries and probabilities, and for those
  // and sums of halves.
  const double bar = name.starts_with("portable")                ? 1e-9
                     : name.starts_with("avx") || name == "neon" ? 2e-7
                                                                 : 1e-5;
  for (const KvType type : kAllKvTypes) {
    for (const cpu::CutKernel& kernel : kernels(type, false)) {
      const auto check = [&](const KernelCase& c) {
        SCOPED_TRACE(describe(c));
        PagedStep step(device_, c);
        const std::vector<float> expected = step.run(cpu::cut_kernels(type, false).front());
        const std::vector<float> actual = step.run(kernel);
        double error = 0, power = 0;
        for (size_t i = 0; i < expected.size(); ++i) {
          error += std::pow(double{actual[i]} - expected[i], 2);
          power += std::pow(double{expected[i]}, 2);
        }
        EXPECT_LE(error, bar * power);
      };
      for (const int dim : {8, 24, 64, 80, 96, 128, 200, 256}) {
        for (const int group : {1, 2, 3, 4, 5, 6, 7, 8, 12}) check({type, group, 1, dim, 299, 1});
        check({type, 6, 3, dim, 530, 1});
        check({type, 4, 2, dim, 15, 1});
        check({type, 4, 2, dim, 250, 12, 100});
        check({type, 3, 1, dim, 0, 20});
        check({type, 2, 2, dim, 600, 1, 70});
      }
      if (is_quantized(type)) continue;
      for (const int dim : {5, 20, 33, 300}) check({type, 6, 2, dim, 300, 2});
    }
  }
}

TEST_P(CutKernelTest, DeterministicOnesDoNotMixRows) {
  for (const KvType type : kAllKvTypes) {
    for (const cpu::CutKernel& kernel : kernels(type, true)) {
      for (const KernelCase& c : {KernelCase{type, 3, 1, 64, 250, 9},
                                  {type, 2, 2, 80, 3, 12, 7},
                                  {type, 5, 1, 8, 0, 6}}) {
        SCOPED_TRACE(describe(c));
        PagedStep step(device_, c);
        const std::vector<float> all = step.run(kernel);
        const auto width = static_cast<size_t>(c.heads * c.head_dim);
        for (int32_t row = 0; row < c.rows; ++row) {
          const std::vector<float> one = step.run(kernel, row, 1);
          EXPECT_TRUE(
              std::equal(one.begin(), one.end(), all.begin() + static_cast<int64_t>(row * width)))
              << "row " << row;
        }
      }
    }
  }
}

TEST_P(CutKernelTest, KeepsWhatIsNotANumber) {
  enum class Where { kQuery, kKey, kValue };
  for (const KvType type : kAllKvTypes) {
    for (const cpu::CutKernel& kernel : kernels(type, false)) {
      for (const int dim : {8, 64, 80}) {
        for (const Where where : {Where::kQuery, Where::kKey, Where::kValue}) {
          for (const float bad : {NAN, INFINITY, -INFINITY}) {
            const KernelCase c{type, 4, 2, dim, 40, 1};
            SCOPED_TRACE(describe(c) << ", " << static_cast<int>(where) << ", " << bad);
            PagedStep step(device_, c);
            // The bad number is in the first head, or in its KV head at token 20.
            const auto at = static_cast<size_t>(where == Where::kQuery ? 1 : 20 * 2 * dim + 1);
            (where == Where::kQuery ? step.q()
             : where == Where::kKey ? step.keys()
                                    : step.values())[at] = bad;
            const std::vector<float> out = step.run(kernel);
            const auto wrong = [&](int head) {
              return std::count_if(out.begin() + head * dim, out.begin() + (head + 1) * dim,
                                   [](float x) { return !std::isfinite(x); });
            };
            if (where == Where::kValue) {
              EXPECT_GE(wrong(0), 1);
            } else {
              EXPECT_EQ(wrong(0), dim);
            }
            EXPECT_EQ(wrong(2) + wrong(3), 0) << "of the other kv head";
          }
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, CutKernelTest,
                         testing::Values("portable", "portable codes", "neon", "fp16fml", "dotprod",
                                         "i8mm", "fp16fml groups", "i8mm groups", "avx2",
                                         "avx_vnni", "avx512"),
                         [](const auto& test) {
                           std::string name = test.param;
                           std::replace(name.begin(), name.end(), ' ', '_');
                           return name;
                         });

}  // namespace
}  // namespace spillway
