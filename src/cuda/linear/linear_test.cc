// SPDX-License-Identifier: Apache-2.0
// Compares linear layers on the GPU with sums in double: every kind of kernel and variant, all
// types and epilogues, sizes that fit no tile, and outputs that were poisoned and are surrounded by
// guards.
#include "cuda/linear/linear.h"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <vector>

#include "cuda/cuda_error.h"
#include "cuda/linear/linear_library.h"
#include "tensor/half.h"

namespace spillway::cuda {
namespace {

bool has_gpu() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess && count > 0;
}

// Device memory that is initialized with bytes of the host.
class DeviceBytes {
 public:
  explicit DeviceBytes(const std::vector<std::byte>& bytes) : size_(bytes.size()) {
    SPW_CUDA_CHECK(cudaMalloc(&data_, std::max<size_t>(size_, 1)));
    SPW_CUDA_CHECK(cudaMemcpy(data_, bytes.data(), size_, cudaMemcpyHostToDevice));
  }
  ~DeviceBytes() { (void)cudaFree(data_); }
  DeviceBytes(const DeviceBytes&) = delete;
  DeviceBytes& operator=(const DeviceBytes&) = delete;
  std::byte* data() const { return static_cast<std::byte*>(data_); }
  std::vector<std::byte> host() const {
    std::vector<std::byte> bytes(size_);
    SPW_CUDA_CHECK(cudaMemcpy(bytes.data(), data_, size_, cudaMemcpyDeviceToHost));
    return bytes;
  }

 private:
  void* data_ = nullptr;
  size_t size_;
};

void put(DType type, std::vector<std::byte>& bytes, size_t index, float value) {
  const auto write = [&](auto v) { std::memcpy(bytes.data() + index * sizeof(v), &v, sizeof(v)); };
  if (type == DType::kF16) return write(to_half(value));
  if (type == DType::kBF16) return write(to_bfloat16(value));
  write(value);
}

float get(DType type, const std::vector<std::byte>& bytes, size_t index) {
  const auto read = [&](auto v) {
    std::memcpy(&v, bytes.data() + index * sizeof(v), sizeof(v));
    return v;
  };
  if (type == DType::kF16) return to_float(read(Half()));
  if (type == DType::kBF16) return to_float(read(BFloat16()));
  return read(0.0f);
}

size_t bytes_of(DType type, size_t count) {
  return static_cast<size_t>(row_bytes(type, static_cast<int64_t>(count)));
}

double activated(ActivationKind kind, double v) {
  switch (kind) {
    case ActivationKind::kRelu:
      return v > 0 ? v : 0;
    case ActivationKind::kGelu:
      return 0.5 * v * (1 + std::erf(v / std::sqrt(2.0)));
    case ActivationKind::kGeluTanh:
      return 0.5 * v * (1 + std::tanh(std::sqrt(2 / M_PI) * (v + 0.044715 * v * v * v)));
    case ActivationKind::kSilu:
      break;
  }
  return v / (1 + std::exp(-v));
}

struct Case {
  DType type = DType::kF16;
  DType out_type = DType::kF16;
  std::vector<int> n = {40};
  int k = 72;
  int tokens = 1;
  Epilogue epilogue = Epilogue::kStore;
  ActivationKind activation = ActivationKind::kSilu;
  bool bias = true;
  int x_padding = 8;  // elements between rows of x
  float scale = 1;    // factor of x
  float w_scale = 1;
  int x_offset = 0;  // elements before x: misaligns it
};

constexpr size_t kGuard = 64;  // elements around each part's output, and between its rows

// A call with its memory and the expected output.
class Problem {
 public:
  explicit Problem(const Case& c) : c_(c) {
    std::mt19937 random(static_cast<unsigned>(c.k * 131 + c.tokens));
    std::normal_distribution<float> normal;
    const auto k = static_cast<size_t>(c.k), tokens = static_cast<size_t>(c.tokens);
    const size_t x_stride = k + static_cast<size_t>(c.x_padding);
    const auto offset = static_cast<size_t>(c.x_offset);
    std::vector<std::byte> x(bytes_of(c.type, offset + tokens * x_stride), std::byte{0xff});  // NaN
    for (size_t t = 0; t < tokens; ++t) {
      for (size_t i = 0; i < k; ++i) {
        put(c.type, x, offset + t * x_stride + i, c.scale * normal(random));
      }
    }
    std::vector<double> xs(tokens * k);
    for (size_t t = 0; t < tokens; ++t) {
      for (size_t i = 0; i < k; ++i) xs[t * k + i] = get(c.type, x, offset + t * x_stride + i);
    }
    size_t columns = kGuard;
    for (int n : c.n) columns += static_cast<size_t>(n) + kGuard;
    stride_ = columns;
    std::vector<std::byte> out(bytes_of(c.out_type, columns * tokens), std::byte{0xff});
    want_.assign(columns * tokens, std::nullopt);
    std::vector<double> sums[3];
    for (size_t part = 0, column = kGuard; part < c.n.size(); ++part) {
      const auto n = static_cast<size_t>(c.n[part]);
      std::vector<std::byte> w(bytes_of(c.type, n * k));
      for (size_t i = 0; i < n * k; ++i) {
        put(c.type, w, i, c.w_scale * normal(random) / std::sqrt(static_cast<float>(c.k)));
      }
      std::vector<double> ws(n * k);
      for (size_t i = 0; i < n * k; ++i) ws[i] = get(c.type, w, i);
      std::vector<std::byte> bias(n * sizeof(float));
      for (size_t i = 0; i < n; ++i) put(DType::kF32, bias, i, normal(random));
      sums[part].resize(n * tokens);
      for (size_t t = 0; t < tokens; ++t) {
        for (size_t r = 0; r < n; ++r) {
          double sum = c.bias ? double{get(DType::kF32, bias, r)} : 0;
          for (size_t i = 0; i < k; ++i) sum += ws[r * k + i] * xs[t * k + i];
          sums[part][t * n + r] = sum;
          const size_t at = t * columns + column + r;
          if (c.epilogue == Epilogue::kStore) want_[at] = sum;
          if (c.epilogue == Epilogue::kActivate) want_[at] = activated(c.activation, sum);
          if (c.epilogue == Epilogue::kAccumulate) {
            put(DType::kF32, out, at, static_cast<float>(t + r));
            want_[at] = sum + static_cast<double>(t + r);
          }
          if (c.epilogue == Epilogue::kGated && part == 1) {
            const double gate = activated(c.activation, sums[0][t * n + r]);
            want_[t * columns + kGuard + r] = gate * sum;
          }
        }
      }
      w_.push_back(std::make_unique<DeviceBytes>(w));
      bias_.push_back(std::make_unique<DeviceBytes>(bias));
      column_.push_back(column);
      column += n + kGuard;
    }
    x_ = std::make_unique<DeviceBytes>(x);
    out_ = std::make_unique<DeviceBytes>(out);
    poisoned_ = std::move(out);
    call_.count = static_cast<int>(c.n.size());
    call_.x = {c.type, c.tokens, c.k, static_cast<int64_t>(x_stride),
               x_->data() + bytes_of(c.type, offset)};
    call_.epilogue = c.epilogue;
    call_.activation = c.activation;
    for (size_t part = 0; part < c.n.size(); ++part) {
      LinearPart& p = call_.parts[part];
      p.w = {c.type, c.n[part], c.k, w_[part]->data()};
      if (c.bias) p.bias = reinterpret_cast<const float*>(bias_[part]->data());
      p.out = {c.out_type, c.tokens, c.n[part], static_cast<int64_t>(stride_),
               out_->data() + bytes_of(c.out_type, column_[part])};
    }
  }

  const LinearCall& call() const { return call_; }
  // Returns the call with its output reset: poisoned, or the values to accumulate onto.
  const LinearCall& fresh_call() const {
    SPW_CUDA_CHECK(cudaDeviceSynchronize());
    SPW_CUDA_CHECK(
        cudaMemcpy(out_->data(), poisoned_.data(), poisoned_.size(), cudaMemcpyHostToDevice));
    return call_;
  }

  // `rounds`: how often values were rounded to the output's type.
  void expect_right(const std::string& what, int rounds = 1) const {
    SPW_CUDA_CHECK(cudaDeviceSynchronize());
    const std::vector<std::byte> got = out_->host();
    const double unit = c_.out_type == DType::kF16    ? 0x1p-11
                        : c_.out_type == DType::kBF16 ? 0x1p-8
                                                      : 0x1p-24;
    int wrong = 0;
    for (size_t i = 0; i < want_.size() && wrong < 5; ++i) {
      if (!want_[i]) {
        for (size_t b = bytes_of(c_.out_type, i); b < bytes_of(c_.out_type, i + 1); ++b) {
          if (got[b] != std::byte{0xff}) {
            ++wrong;
            ADD_FAILURE() << what << ": a guard was overwritten at " << i;
            break;
          }
        }
        continue;
      }
      double want = *want_[i];
      if (c_.out_type == DType::kF16) want = std::clamp(want, -65504.0, 65504.0);
      const double value = get(c_.out_type, got, i);
      // Errors come from F32 sums of k products of deviation 1 / sqrt(k), and from rounding the
      // result.
      const double sums = double{c_.scale} * double{c_.w_scale} * 0x1p-24 * (8 + std::sqrt(c_.k));
      // A gated product has the errors of both factors, which the library rounds to x's type.
      const bool gated = c_.epilogue == Epilogue::kGated;
      const double middle = !gated || rounds == 1     ? 0
                            : c_.type == DType::kBF16 ? 0x1p-8
                            : c_.type == DType::kF16  ? 0x1p-11
                                                      : 0x1p-24;
      const double tolerance =
          (rounds * unit + 2 * middle) * (std::abs(want) + (rounds > 1 ? 4 : 0)) +
          (gated ? 64 : 8) * sums;
      if (!(std::abs(value - want) <= tolerance)) {
        ++wrong;
        ADD_FAILURE() << what << ": token " << i / stride_ << " column " << i % stride_ << " is "
                      << value << ", not " << want << " (k " << c_.k << ", tokens " << c_.tokens
                      << ", " << dtype_name(c_.type) << " to " << dtype_name(c_.out_type)
                      << ", epilogue " << static_cast<int>(c_.epilogue) << ")";
      }
    }
  }

  std::vector<std::byte> output() const {
    SPW_CUDA_CHECK(cudaDeviceSynchronize());
    return out_->host();
  }

 private:
  Case c_;
  LinearCall call_;
  size_t stride_ = 0;
  std::vector<std::unique_ptr<DeviceBytes>> w_, bias_;
  std::unique_ptr<DeviceBytes> x_, out_;
  std::vector<std::byte> poisoned_;
  std::vector<size_t> column_;
  std::vector<std::optional<double>> want_;
};

class LinearTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!has_gpu()) GTEST_SKIP() << "no GPU";
    gpu_ = current_gpu();
    scratch_bytes_ = std::make_unique<DeviceBytes>(std::vector<std::byte>(
        std::max(flat_scratch_bytes(gpu_.sms), kLibraryWorkspaceBytes + (size_t{8} << 20))));
    scratch_ = {scratch_bytes_->data(), scratch_bytes_->host().size()};
  }
  void expect_counters_at_zero() const {
    std::vector<std::byte> counters(kScratchCounterBytes);
    SPW_CUDA_CHECK(
        cudaMemcpy(counters.data(), scratch_.data, counters.size(), cudaMemcpyDeviceToHost));
    EXPECT_EQ(counters, std::vector<std::byte>(kScratchCounterBytes));
  }

  GpuShape gpu_;
  std::unique_ptr<DeviceBytes> scratch_bytes_;
  LinearScratch scratch_;
};

std::vector<Case> epilogue_cases(DType type, int k, int tokens) {
  std::vector<Case> cases;
  const DType out = type;
  cases.push_back({type, out, {49, 17, 200}, k, tokens, Epilogue::kStore, {}, false});
  cases.push_back({type, out, {136}, k, tokens, Epilogue::kStore});
  cases.push_back({type, DType::kF32, {33, 130}, k, tokens, Epilogue::kStore});
  cases.push_back({type, DType::kF32, {77}, k, tokens, Epilogue::kAccumulate});
  cases.push_back({type, out, {150}, k, tokens, Epilogue::kActivate, ActivationKind::kRelu});
  cases.push_back({type, out, {20}, k, tokens, Epilogue::kActivate, ActivationKind::kGelu});
  cases.push_back({type, out, {20}, k, tokens, Epilogue::kActivate, ActivationKind::kGeluTanh});
  cases.push_back({type, out, {139, 139}, k, tokens, Epilogue::kGated, ActivationKind::kSilu});
  cases.push_back(
      {type, DType::kF32, {64, 64}, k, tokens, Epilogue::kGated, ActivationKind::kSilu, false});
  return cases;
}

constexpr DType kTypes[] = {DType::kF16, DType::kBF16, DType::kF32};

TEST_F(LinearTest, GemvIsRightInEveryVariant) {
  for (DType type : kTypes) {
    for (const auto& [k, tokens] : {std::pair{8, 1}, {2056, 1}, {520, 2}, {1032, 3}, {2304, 7}}) {
      for (const Case& c : epilogue_cases(type, k, tokens)) {
        const Problem problem(c);
        for (int v = 0; v < gemv_variants(); ++v) {
          if (!gemv_supports(v, problem_of(problem.call()))) continue;
          linear_gemv(problem.fresh_call(), {v, 1, v % 2 == 1}, nullptr);
          problem.expect_right("gemv " + gemv_variant_name(v));
        }
      }
    }
  }
}

// There are many launches, so each case is a test of its own and tests can run in parallel.
class FlatLinearTest : public LinearTest,
                       public testing::WithParamInterface<std::tuple<DType, std::pair<int, int>>> {
};

TEST_P(FlatLinearTest, IsRightInEveryVariant) {
  if (gpu_.compute_capability < 80) GTEST_SKIP() << "no tensor cores that serve";
  const auto& [type, size] = GetParam();
  for (const Case& c : epilogue_cases(type, size.first, size.second)) {
    const Problem problem(c);
    for (int v = 0; v < flat_variants(); ++v) {
      if (!flat_supports(v, problem_of(problem.call()))) continue;
      for (int splits : {0, 1, 3, 37}) {
        linear_flat(problem.fresh_call(), {v, splits}, scratch_, nullptr);
        problem.expect_right("flat " + flat_variant_name(v) + " splits " + std::to_string(splits));
      }
    }
  }
  expect_counters_at_zero();
}

using Size = std::pair<int, int>;  // k, tokens
std::string flat_case_name(const testing::TestParamInfo<std::tuple<DType, Size>>& info) {
  const auto& [type, size] = info.param;
  return std::string(dtype_name(type)) + "_k" + std::to_string(size.first) + "_tokens" +
         std::to_string(size.second);
}
INSTANTIATE_TEST_SUITE_P(Sizes, FlatLinearTest,
                         testing::Combine(testing::Values(DType::kF16, DType::kBF16),
                                          testing::Values(Size{8, 1}, Size{1032, 3}, Size{2120, 8},
                                                          Size{520, 13}, Size{1096, 16},
                                                          Size{968, 29}, Size{712, 61},
                                                          Size{1280, 5}, Size{768, 45})),
                         flat_case_name);

TEST_F(LinearTest, NoNumberOfSplitsAndNoScratchMakesAFlatLaunchFail) {
  if (gpu_.compute_capability < 80) GTEST_SKIP() << "no tensor cores that serve";
  for (int tokens : {5, 45}) {
    const Problem problem({DType::kF16, DType::kF32, {139, 139}, 712, tokens, Epilogue::kGated});
    for (int v = 0; v < flat_variants(); ++v) {
      if (!flat_supports(v, problem_of(problem.call()))) continue;
      for (int splits : {-1, 2, 1 << 20}) {
        linear_flat(problem.fresh_call(), {v, splits}, scratch_, nullptr);
        problem.expect_right(flat_variant_name(v) + " splits " + std::to_string(splits));
        linear_flat(problem.fresh_call(), {v, splits}, {scratch_.data, kScratchCounterBytes},
                    nullptr);
        problem.expect_right(flat_variant_name(v) + " without room for splits");
      }
    }
  }
  expect_counters_at_zero();
}

TEST_F(LinearTest, WhatPlansChooseIsRight) {
  for (DType type : kTypes) {
    for (int tokens : {1, 2, 5, 8, 9, 16, 17, 33, 64}) {
      for (const Case& c : epilogue_cases(type, 1160, tokens)) {
        const Problem problem(c);
        const LinearProblem shape = problem_of(problem.call());
        linear_gemv(problem.fresh_call(), plan_gemv(shape, gpu_), nullptr);
        problem.expect_right("planned gemv");
        linear_flat(problem.fresh_call(), plan_flat(shape, gpu_), scratch_, nullptr);
        problem.expect_right("planned flat");
        linear_flat(problem.fresh_call(), plan_overlapping(shape, gpu_), scratch_, nullptr);
        problem.expect_right("planned for overlapping launches");
      }
    }
  }
  expect_counters_at_zero();
}

// Plans for GpuShape's defaults, an H200; no GPU is needed.
TEST(LinearPlanTest, FewRowsAreDealtToManyWarpsWhetherLaunchesOverlapOrNot) {
  for (int tokens : {1, 2, 8}) {
    const LinearProblem problem{DType::kF16, 4096, 11008, tokens};
    EXPECT_EQ(flat_variant_name(plan_flat(problem, {}).index), "r16 u4 w16");
    EXPECT_EQ(flat_variant_name(plan_overlapping(problem, {}).index), "r16 u4 w16");
  }
}

TEST(LinearPlanTest, GatedTilesAreNotSplitWhereEveryMultiprocessorHasOne) {
  for (int tokens : {5, 8, 9, 16}) {
    const LinearProblem problem{DType::kBF16, 22016, 4096, tokens, true};
    for (const LinearVariant& plan : {plan_flat(problem, {}), plan_overlapping(problem, {})}) {
      EXPECT_EQ(flat_variant_name(plan.index), tokens <= 8 ? "ring r64 s6" : "ring r128 s4");
      EXPECT_EQ(plan.splits, 1);
    }
  }
  EXPECT_GT(plan_flat({DType::kF16, 9000, 4096, 16, true}, {}).splits, 1);
}

TEST_F(LinearTest, OneTokenIsNotGemvsWhereFlatKernelsAreFaster) {
  for (bool library : {false, true}) {
    const auto kernel = [&](DType type, int64_t n, bool gated) {
      return kernel_at(default_points({type, n, 4096, 1, gated}, library), 1);
    };
    const int64_t few = 32 * gpu_.sms, many = 64 * gpu_.sms;
    EXPECT_EQ(kernel(DType::kF16, few, false), LinearKernel::kFlat);
    EXPECT_EQ(kernel(DType::kBF16, many, false),
              gpu_.compute_capability >= 90 ? LinearKernel::kFlat : LinearKernel::kGemv);
    EXPECT_EQ(kernel(DType::kF16, few, true), LinearKernel::kGemv);
    EXPECT_EQ(kernel(DType::kF32, few, false), LinearKernel::kGemv);
  }
}

TEST_F(LinearTest, SizesAndAddressesThatFitNoVectorAreRight) {
  for (DType type : kTypes) {
    for (int tokens : {1, 6, 70}) {
      for (Case c : epilogue_cases(type, 173, tokens)) {
        for (int k : {173, 1, 176}) {
          c.k = k;
          c.x_offset = k == 176 ? 1 : 0;
          c.x_padding = 3;
          const Problem problem(c);
          const LinearProblem shape = problem_of(problem.call());
          linear_gemv(problem.fresh_call(), plan_gemv(shape, gpu_), nullptr);
          problem.expect_right("unaligned gemv");
          linear_flat(problem.fresh_call(), plan_flat(shape, gpu_), scratch_, nullptr);
          problem.expect_right("unaligned flat");
          linear_tiled(problem.fresh_call(), scratch_, nullptr);
          problem.expect_right("unaligned tiled");
        }
      }
    }
  }
}

TEST_F(LinearTest, ManyTokensWorkWithoutALibrary) {
  for (DType type : kTypes) {
    for (const Case& c : epilogue_cases(type, 328, 203)) {
      const Problem problem(c);
      linear_tiled(problem.call(), scratch_, nullptr);
      problem.expect_right("tiled");
    }
  }
}

TEST_F(LinearTest, TheLibraryIsRightBeforeAndAfterTuning) {
  std::string why;
  const auto library = CublasLt::try_load(&why);
  if (library == nullptr) GTEST_SKIP() << why;
  for (DType type : kTypes) {
    for (int tokens : {1, 19, 203}) {
      for (const Case& c : epilogue_cases(type, 328, tokens)) {
        const Problem problem(c);
        linear_library(*library, problem.fresh_call(), scratch_, nullptr);
        problem.expect_right("library", 3);
        if (c.epilogue != Epilogue::kAccumulate) {  // tuning overwrites the output
          const LinearCall calls[] = {problem.call()};
          tune_library(*library, calls, scratch_, nullptr);
          linear_library(*library, problem.fresh_call(), scratch_, nullptr);
          problem.expect_right("tuned library", 3);
        }
      }
    }
  }
  expect_counters_at_zero();
}

// In a model of mixed types results may have another type than the matrices.
TEST_F(LinearTest, TheLibraryTakesWhatItHasAlgorithmsFor) {
  const auto library = CublasLt::try_load();
  for (DType type : kTypes) {
    for (DType out : kTypes) {
      const Problem problem({type, out, {32}, 64, 123});
      EXPECT_EQ(library_takes(problem.call()), out == DType::kF32 || out == type);
      if (library != nullptr && library_takes(problem.call())) {
        linear_library(*library, problem.fresh_call(), scratch_, nullptr);
        problem.expect_right("library", 3);
      }
      linear_tiled(problem.fresh_call(), scratch_, nullptr);
      problem.expect_right("tiled");
    }
  }
}

TEST_F(LinearTest, ValuesBeyondF16Saturate) {
  for (int tokens : {1, 8, 40}) {
    Case c{DType::kF16, DType::kF16, {64}, 64, tokens};
    c.scale = 5000, c.w_scale = 20;
    const Problem gemv(c), flat(c);
    linear_gemv(gemv.call(), plan_gemv(problem_of(gemv.call()), gpu_), nullptr);
    gemv.expect_right("large gemv");
    linear_flat(flat.call(), plan_flat(problem_of(flat.call()), gpu_), scratch_, nullptr);
    flat.expect_right("large flat");
  }
}

TEST_F(LinearTest, OneGemvVariantGivesTheSameBitsAloneAndAmongOthers) {
  for (DType type : kTypes) {
    Case c{type, DType::kF32, {96}, 1000, 7};
    const Problem together(c), alone(c);
    const LinearVariant variant = plan_gemv(problem_of(together.call()), gpu_);
    linear_gemv(together.call(), variant, nullptr);
    for (int t = 0; t < 7; ++t) {
      LinearCall one = alone.call();
      one.x = one.x.row_range(t, 1);
      one.parts[0].out = one.parts[0].out.row_range(t, 1);
      linear_gemv(one, variant, nullptr);
    }
    EXPECT_EQ(together.output(), alone.output()) << dtype_name(type);
  }
}

TEST_F(LinearTest, AFlatVariantGivesTheSameBitsEveryTime) {
  for (int tokens : {8, 64}) {
    Case c{DType::kF16, DType::kF32, {300}, 4096, tokens};
    const Problem first(c), second(c);
    const LinearVariant variant = plan_flat(problem_of(first.call()), gpu_);
    linear_flat(first.call(), variant, scratch_, nullptr);
    linear_flat(second.call(), variant, scratch_, nullptr);
    EXPECT_EQ(first.output(), second.output());
  }
}

}  // namespace
}  // namespace spillway::cuda
