// SPDX-License-Identifier: Apache-2.0
// Whole networks on a GPU: logits compared with the CPU's, recorded steps, sampling, and what
// happens when memory runs out.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "base/error.h"
#include "cuda/cuda.h"
#include "engine/engine.h"
#include "engine/perplexity.h"
#include "tests/generation/engine_answers.h"
#include "tests/generation/tiny_models.h"

namespace spillway {
namespace {

using testing_models::tiny_prompt;
using testing_models::TinyRuntime;
using Rows = std::vector<std::vector<float>>;

class CudaGenerationTest : public testing::Test {
 protected:
  void SetUp() override {
    const CudaDevices found = list_cuda_devices();
    if (found.devices.empty()) GTEST_SKIP() << "no GPU: " << found.none_reason;
  }
  static TinyRuntime on_gpu(const std::string& kind, DType dtype, uint64_t budget = 0) {
    return TinyRuntime(make_cuda_device({.index = 0, .memory_bytes = budget}), kind, dtype);
  }
};

Rows all_logits(TinyRuntime& runtime, const std::vector<int32_t>& ids, int chunk, KvType type) {
  KvCache kv = runtime.make_kv(64, type);
  Decoder decoder = runtime.make_decoder(chunk);
  Rows rows;
  forward_all(decoder, kv, ids, 0, [&](int64_t, const Activations& logits) {
    for (int64_t i = 0; i < logits.rows; ++i)
      rows.emplace_back(logits.f32(i), logits.f32(i) + logits.cols);
  });
  return rows;
}

double difference(const Rows& a, const Rows& b) {
  double error = 0, power = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    for (size_t j = 0; j < a[i].size(); ++j) {
      error += std::pow(double{a[i][j]} - b[i][j], 2);
      power += std::pow(double{b[i][j]}, 2);
    }
  }
  return std::isfinite(error) ? error / power : INFINITY;
}

// Returns the largest difference() allowed. With F32 the devices differ by rounding alone, with
// other types also by the half-precision activations between matrices, and by 8-bit activations on
// the CPU.
double bar_of(DType type) {
  if (type == DType::kF32) return 1e-8;
  return type == DType::kBF16 ? 1e-3 : 3e-4;
}

class CudaKindTest : public CudaGenerationTest, public testing::WithParamInterface<std::string> {};

TEST_P(CudaKindTest, ComputesTheLogitsOfTheCpu) {
  const auto ids = tiny_prompt(300, 1);
  for (const DType type : {DType::kF32, DType::kF16, DType::kBF16, DType::kQ8_0, DType::kQ4_0}) {
    SCOPED_TRACE(dtype_name(type));
    TinyRuntime cpu(GetParam(), type), gpu = on_gpu(GetParam(), type);
    const KvType kv = type == DType::kF32 ? KvType::kF32 : KvType::kF16;
    const Rows expected = all_logits(cpu, ids, 300, kv);
    for (const int chunk : {300, 64, 1}) {
      SCOPED_TRACE(chunk);
      EXPECT_LE(difference(all_logits(gpu, ids, chunk, kv), expected), bar_of(type));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, CudaKindTest,
                         testing::Values("llama", "window", "mixed", "chunks", "shared", "opt",
                                         "opt-350m", "qwen2", "qwen3", "neox", "stablelm", "gemma3",
                                         "olmo2", "gptj", "smollm3"),
                         [](const auto& kind) {
                           std::string name = kind.param;
                           std::erase(name, '-');
                           return name;
                         });

// A persistent kernel computes steps of one token in one launch
// (cuda/persistent/persistent_step.h).
TEST_F(CudaGenerationTest, PersistentStepsComputeTheLogitsOfTheCpu) {
  const auto ids = tiny_prompt(600, 4);
  for (const std::string kind :
       {"llama-64", "window-64", "mixed-64", "chunks-64", "shared-64", "opt-64", "llama-128"}) {
    for (const DType type : {DType::kF16, DType::kBF16}) {
      TinyRuntime cpu(kind, type), gpu = on_gpu(kind, type);
      const Rows expected = all_logits(cpu, ids, 600, KvType::kF16);
      for (const KvType kv : {KvType::kF16, KvType::kInt8}) {
        EXPECT_LE(difference(all_logits(gpu, ids, 1, kv), expected),
                  kv == KvType::kF16 ? bar_of(type) : 1e-2)
            << kind << ", " << dtype_name(type) << ", " << kv_type_name(kv);
      }
    }
  }
}

// Compares with the CPU, and with the GPU's kernels op by op, which deterministic mode uses.
void expect_persistent_logits(TinyRuntime& cpu, TinyRuntime& gpu, TinyRuntime& by_op,
                              const std::vector<int32_t>& ids, double bar) {
  by_op.device.ops().set_deterministic(true);
  const Rows persistent = all_logits(gpu, ids, 1, KvType::kF16);
  EXPECT_LE(difference(persistent, all_logits(by_op, ids, 1, KvType::kF16)), 1e-5);
  EXPECT_LE(
      difference(persistent, all_logits(cpu, ids, static_cast<int>(ids.size()), KvType::kF16)),
      bar);
}

// The weights are packed here, and the CPU rounds activations to 8 bits.
TEST_F(CudaGenerationTest, PersistentStepsOverPackedWeightsComputeTheLogitsOfTheCpu) {
  const auto ids = tiny_prompt(600, 4);
  for (const std::string kind : {"llama-64-wide", "opt-64-wide", "llama-128-wide"}) {
    for (const DType type : {DType::kQ4_0, DType::kQ4_1, DType::kG4, DType::kQ8_0, DType::kQ4_K,
                             DType::kQ5_K, DType::kQ6_K}) {
      TinyRuntime cpu(kind, type), gpu = on_gpu(kind, type), by_op = on_gpu(kind, type);
      SCOPED_TRACE(testing::Message() << kind << ", " << dtype_name(type));
      expect_persistent_logits(cpu, gpu, by_op, ids, bar_of(type));
    }
  }
}

// In files of mixed types the parts of a phase, or the phases of a step, have two types.
TEST_F(CudaGenerationTest, PersistentStepsOverMixedTypesComputeTheLogitsOfTheCpu) {
  const auto ids = tiny_prompt(200, 7);
  for (const std::string kind : {"llama-64-wide", "llama-128-wide"}) {
    for (const DType type : {DType::kQ4_K, DType::kQ5_K}) {
      const auto mixed_on = [&](std::unique_ptr<Device> device) {
        return TinyRuntime(std::move(device), kind, type, DType::kQ6_K);
      };
      TinyRuntime cpu = mixed_on(std::make_unique<CpuDevice>(CpuDeviceOptions{2}));
      TinyRuntime gpu = mixed_on(make_cuda_device({})), by_op = mixed_on(make_cuda_device({}));
      SCOPED_TRACE(testing::Message() << kind << ", " << dtype_name(type));
      expect_persistent_logits(cpu, gpu, by_op, ids, bar_of(type));
    }
  }
}

// A kernel that starts before the previous one has ended computes what it would have computed
// alone.
TEST_F(CudaGenerationTest, OverlappingLaunchesChangeNoBit) {
  const auto ids = tiny_prompt(320, 9);
  for (const DType type : {DType::kF16, DType::kQ4_0, DType::kQ4_K}) {
    TinyRuntime gpu = on_gpu("llama-64-wide", type);
    TinyRuntime alone(make_cuda_device({.techniques = {.overlapping_launches = false}}),
                      "llama-64-wide", type);
    // Kernels overlap for these numbers of tokens. F16 has other kernels for steps without overlap.
    for (const int tokens : {1, 8, 40, 64}) {
      const Rows expected = all_logits(alone, ids, tokens, KvType::kF16);
      for (int i = 0; i < 5; ++i) {
        const double differs = difference(all_logits(gpu, ids, tokens, KvType::kF16), expected);
        EXPECT_LE(differs, type == DType::kF16 ? 1e-6 : 0) << dtype_name(type) << ", " << tokens;
      }
    }
  }
}

// There are more rows than a thread block's sums have room for.
TEST_F(CudaGenerationTest, PersistentStepsOverManyRowsComputeTheLogitsOfTheCpu) {
  const auto ids = tiny_prompt(24, 6);
  for (const DType type : {DType::kF16, DType::kQ4_0, DType::kQ4_K}) {
    TinyRuntime cpu("llama-many-rows", type), gpu = on_gpu("llama-many-rows", type);
    EXPECT_LE(
        difference(all_logits(gpu, ids, 1, KvType::kF16), all_logits(cpu, ids, 24, KvType::kF16)),
        bar_of(type))
        << dtype_name(type);
  }
}

TEST_F(CudaGenerationTest, EveryKvTypeGivesTheLogitsOfTheCpu) {
  const auto ids = tiny_prompt(300, 2);
  TinyRuntime cpu("llama"), gpu = on_gpu("llama", DType::kF32);
  for (const KvType kv : kAllKvTypes) {
    const Rows expected = all_logits(cpu, ids, 300, kv);
    for (const int chunk : {300, 64, 1}) {
      EXPECT_LE(difference(all_logits(gpu, ids, chunk, kv), expected),
                kv == KvType::kF32 ? 1e-8 : 1e-4)
          << kv_type_name(kv) << ", chunks of " << chunk;
    }
  }
}

// The greedy continuation is computed one token at a time, and from the third step on steps are
// replayed.
TEST_F(CudaGenerationTest, RecordedStepsComputeWhatFirstOnesDid) {
  TinyRuntime gpu = on_gpu("llama", DType::kF16);
  const auto ids = tiny_prompt(40, 3);
  const Rows first = all_logits(gpu, ids, 1, KvType::kF16);
  KvCache kv = gpu.make_kv(64, KvType::kF16);
  Decoder decoder = gpu.make_decoder(1);
  for (int round = 0; round < 3; ++round) {
    size_t at = 0;
    forward_all(decoder, kv, ids, 0, [&](int64_t, const Activations& logits) {
      const std::vector<float> row(logits.f32(0), logits.f32(0) + logits.cols);
      ASSERT_EQ(row, first[at++]) << "round " << round;
    });
  }
}

// The number of swapped layers changes while a sequence is computed. Steps are then recorded as
// several graphs, which are replayed wherever the KV of a layer is. Of three layers two or all are
// swapped, of nine any number.
TEST_F(CudaGenerationTest, SwappingLayersChangesNoBit) {
  CpuDevice host(CpuDeviceOptions{1});
  const auto ids = tiny_prompt(120, 8);
  const auto compare = [&](TinyRuntime& gpu, KvType kv_type, int spare, const Rows& expected) {
    const ModelSpec& spec = gpu.model.spec;
    KvCache kv(gpu.device, host, kv_shapes(spec.states, kv_type),
               {.device_blocks = 8, .most_swapped = spec.layer_count(), .spare_buffers = spare});
    Decoder decoder(gpu.device, spec, gpu.weights, {.max_tokens = 1, .host = &host});
    const int counts[] = {0, spare + 1, spec.layer_count(), spec.layer_count() - 1, 0};
    size_t at = 0;
    std::string differing;
    forward_all(decoder, kv, ids, 0, [&](int64_t, const Activations& logits) {
      const std::vector<float> row(logits.f32(0), logits.f32(0) + logits.cols);
      if (row != expected[at])
        differing += fmt::format(" {} ({} swapped, by {:.2g})", at, kv.layers().swapped_count(),
                                 difference({row}, {expected[at]}));
      if (++at % 8 != 0) return;
      const int swapped = counts[at / 8 % std::size(counts)];
      decoder.change_swapped_layers(kv, swapped > spare ? swapped : 0);
    });
    EXPECT_EQ(differing, "") << kv_type_name(kv_type) << ", spare " << spare;
  };
  for (const std::string kind : {"llama-64-wide", "opt-64-wide", "llama-deep"}) {
    for (const DType type : {DType::kF16, DType::kQ4_0}) {
      if (type == DType::kQ4_0 && kind == "llama-deep") continue;  // its rows are no whole blocks
      for (const CudaTechniques techniques :
           {CudaTechniques{}, CudaTechniques{.graphs = false},
            CudaTechniques{.persistent_step = false},
            CudaTechniques{.graphs = false, .persistent_step = false}}) {
        SCOPED_TRACE(testing::Message()
                     << kind << ", " << dtype_name(type) << ", graphs " << techniques.graphs
                     << ", persistent steps " << techniques.persistent_step);
        TinyRuntime gpu(make_cuda_device({.techniques = techniques}), kind, type);
        for (const KvType kv_type : {KvType::kF16, KvType::kInt8}) {
          const Rows expected = all_logits(gpu, ids, 1, kv_type);
          for (const int spare : {1, 2})
            if (gpu.model.spec.layer_count() > spare + 1) compare(gpu, kv_type, spare, expected);
        }
      }
    }
  }
}

// Several sequences run at a time, and their tokens are sampled on the GPU.
TEST_F(CudaGenerationTest, AnswersAreTheSameWhicheverLayersAreSwapped) {
  CpuDevice host(CpuDeviceOptions{1});
  TinyRuntime gpu = on_gpu("llama-deep", DType::kF16);
  const ModelSpec& spec = gpu.model.spec;
  const auto answers = [&](int swapped, bool changes) {
    KvCache kv(gpu.device, host, kv_shapes(spec.states, KvType::kF16),
               {.device_blocks = 64, .most_swapped = spec.layer_count()});
    Decoder decoder(gpu.device, spec, gpu.weights, {.max_tokens = 64, .host = &host});
    Engine engine(decoder, kv, nullptr, {});
    engine.change_swapped_layers(swapped);
    for (uint32_t n = 0; n < 5; ++n) {
      engine.submit(testing_models::make_request(10 + 7 * static_cast<int>(n), n, 60,
                                                 n % 2 == 0 ? 0.8F : 0.0F));
    }
    std::map<RequestId, std::vector<TokenId>> ids;
    const auto sink = [&](const GenerationEvent& event) {
      EXPECT_TRUE(event.error.empty()) << event.error;
      if (event.token) ids[event.id].push_back(*event.token);
    };
    constexpr int kTurns[] = {4, 0, 9, 7, 3};
    for (int step = 0; engine.step(sink); ++step) {
      if (changes && step % 7 == 6) engine.change_swapped_layers(kTurns[step / 7 % 5]);
    }
    std::vector<std::vector<TokenId>> all;
    for (auto& [id, of] : ids) all.push_back(std::move(of));
    return all;
  };
  const auto expected = answers(0, false);
  for (int swapped = kSpareBuffers + 1; swapped <= spec.layer_count(); ++swapped)
    EXPECT_EQ(answers(swapped, false), expected) << swapped << " swapped";
  EXPECT_EQ(answers(0, true), expected) << "their number changes";
}

// In F32 logits are equal up to rounding, so the same tokens are sampled, with every option.
TEST_F(CudaGenerationTest, DrawsTheTokensThatTheCpuDraws) {
  TinyRuntime cpu("llama"), gpu = on_gpu("llama", DType::kF32);
  std::vector<SamplingParams> all(9);
  for (size_t i = 1; i < all.size(); ++i) all[i].temperature = 0.9F, all[i].seed = i;
  all[2].top_k = 7;
  all[3].top_p = 0.8F;
  all[4].min_p = 0.05F;
  all[5].top_k = 20, all[5].top_p = 0.7F;
  all[6].logit_bias = {{5, 4.0F}, {9, -100.0F}};
  all[7].repetition_penalty = 1.3F, all[7].frequency_penalty = 0.2F;
  all[8].logprobs = 2;
  const auto answers = [&](TinyRuntime& runtime) {
    KvCache kv = runtime.make_kv(200);
    Decoder decoder = runtime.make_decoder(64);
    Engine engine(decoder, kv, nullptr, {});
    for (const SamplingParams& sampling : all) {
      GenerationRequest request;
      request.prompt = tiny_prompt(20, 5);
      request.max_tokens = 40;
      request.sampling = sampling;
      engine.submit(request);
    }
    return testing_models::run_all(engine);
  };
  EXPECT_EQ(answers(gpu), answers(cpu));
}

// In F32 the same tokens are sampled, so that rows belong to the same text. Log-probabilities then
// differ by the rounding of the network (1e-4 of logits whose deviation is about 1, by the bar of
// ComputesTheLogitsOfTheCpu) and of the kernel's sums (1e-6). Tokens whose logits are closer than
// that may be in another order.
TEST_F(CudaGenerationTest, GivesTheLogprobsOfTheCpu) {
  constexpr float kTolerance = 1e-3F;
  TinyRuntime cpu("llama"), gpu = on_gpu("llama", DType::kF32);
  const auto logprobs_of = [](TinyRuntime& runtime) {
    KvCache kv = runtime.make_kv(100);
    Decoder decoder = runtime.make_decoder(64);
    Engine engine(decoder, kv, nullptr, {});
    for (const GenerationRequest& request : testing_models::logprobs_requests())
      engine.submit(request);
    return testing_models::run_for_logprobs(engine);
  };
  const auto found = logprobs_of(gpu), expected = logprobs_of(cpu);
  ASSERT_EQ(found.size(), expected.size());
  for (const auto& [id, wanted] : expected) {
    const std::vector<Logprobs>& got = found.at(id);
    ASSERT_EQ(got.size(), wanted.size());
    for (size_t i = 0; i < got.size(); ++i) {
      EXPECT_NEAR(got[i].chosen, wanted[i].chosen, kTolerance);
      ASSERT_EQ(got[i].top.size(), wanted[i].top.size());
      for (size_t j = 0; j < got[i].top.size(); ++j) {
        EXPECT_NEAR(got[i].top[j].logprob, wanted[i].top[j].logprob, kTolerance);
        if (got[i].top[j].id == wanted[i].top[j].id) continue;
        // The CPU lists the token at a neighbouring place, or has it just behind the end of its
        // list.
        const auto same = std::ranges::find(wanted[i].top, got[i].top[j].id, &TokenLogprob::id);
        const float logprob =
            same == wanted[i].top.end() ? wanted[i].top.back().logprob : same->logprob;
        EXPECT_NEAR(got[i].top[j].logprob, logprob, kTolerance);
      }
    }
  }
}

// Budgets are too small, each by a little less than the one before: the result is always the typed
// error, and never a leak. With enough memory it works.
TEST_F(CudaGenerationTest, RunsOutOfMemoryCleanlyAtEveryAllocation) {
  const auto ids = tiny_prompt(30, 6);
  uint64_t needed = 0;
  {
    TinyRuntime gpu = on_gpu("llama", DType::kF16);
    all_logits(gpu, ids, 30, KvType::kF16);
    needed = gpu.device.usage().peak_bytes;
  }
  int failures = 0;
  for (uint64_t budget = needed / 64; budget < needed; budget += needed / 64) {
    try {
      TinyRuntime gpu = on_gpu("llama", DType::kF16, budget);
      all_logits(gpu, ids, 30, KvType::kF16);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kOutOfMemory) << error.what();
      ++failures;
    }
  }
  EXPECT_GT(failures, 30);
  TinyRuntime gpu = on_gpu("llama", DType::kF16, needed);
  all_logits(gpu, ids, 30, KvType::kF16);
  const uint64_t before = gpu.device.usage().bytes[static_cast<size_t>(MemoryTag::kKv)];
  EXPECT_THROW(gpu.make_kv(1 << 20, KvType::kF16), Error);
  EXPECT_EQ(gpu.device.usage().bytes[static_cast<size_t>(MemoryTag::kKv)], before);
  all_logits(gpu, ids, 30, KvType::kF16);  // and the next request works
}

}  // namespace
}  // namespace spillway
