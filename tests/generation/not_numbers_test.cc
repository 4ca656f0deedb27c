// SPDX-License-Identifier: Apache-2.0
// A request whose numbers leave the range ends with a reason. Requests that run beside it, or later
// in its blocks, are not affected.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cpu/emulated_accelerator.h"
#include "cuda/cuda.h"
#include "engine/engine.h"
#include "engine/perplexity.h"
#include "runtime/test_weight_view.h"
#include "tensor/half.h"
#include "tests/generation/engine_answers.h"
#include "tests/generation/tiny_models.h"

namespace spillway::testing_models {
namespace {

constexpr TokenId kOffender = 2;  // tiny_prompt() has ids from 3 on

struct Setting {
  std::string device;
  std::string model;
  DType weights;
};
std::vector<Setting> settings() {
  return {{"cpu", "llama", DType::kF32},      {"cpu", "llama-64", DType::kBF16},
          {"emulated", "llama", DType::kF32}, {"cuda", "llama-64", DType::kF32},
          {"cuda", "llama-64", DType::kBF16}, {"cuda", "llama-64", DType::kF16},
          {"cuda", "llama-128", DType::kF16}, {"cuda", "llama-128", DType::kBF16}};
}
std::string setting_name(const testing::TestParamInfo<Setting>& info) {
  std::string name = info.param.device + "_" + info.param.model + "_" +
                     std::string(dtype_name(info.param.weights));
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

std::unique_ptr<Device> make_device(const std::string& name) {
  if (name == "cpu") return std::make_unique<CpuDevice>(CpuDeviceOptions{1});
  if (name == "cuda") return make_cuda_device({.index = 0, .memory_bytes = uint64_t{2} << 30});
  EmulatedAcceleratorOptions options;
  options.draws = true;
  return std::make_unique<EmulatedAccelerator>(options);
}

// A plain matrix of a model, to be changed on its device.
class Changed {
 public:
  Changed(Device& device, const WeightView& w) : device_(device), w_(w), bytes_(size_of(w)) {
    EXPECT_EQ(w.layout, WeightLayout::kRows);
    device.copy_to_host(bytes_.data(), w.data, bytes_.size());
  }
  ~Changed() {
    device_.copy_to_device(const_cast<std::byte*>(w_.data), bytes_.data(), bytes_.size());
    device_.synchronize();
  }
  void set(int64_t row, int64_t column, float value) {
    std::byte* const at = bytes_.data() + row * w_.row_bytes();
    if (w_.dtype == DType::kF32) {
      std::memcpy(at + 4 * column, &value, 4);
      return;
    }
    const uint16_t bits = w_.dtype == DType::kF16 ? to_half(value).bits : to_bfloat16(value).bits;
    std::memcpy(at + 2 * column, &bits, 2);
  }

 private:
  static size_t size_of(const WeightView& w) { return static_cast<size_t>(w.bytes()); }
  Device& device_;
  WeightView w_;
  std::vector<std::byte> bytes_;
};

struct Ended {
  Answer answer;
  std::string error;
};

class NotNumbersTest : public testing::TestWithParam<Setting> {
 protected:
  void SetUp() override {
    const Setting& setting = GetParam();
    if (setting.device == "cuda" && list_cuda_devices().devices.empty()) GTEST_SKIP() << "no GPU";
    runtime_.emplace(make_device(setting.device), setting.model, setting.weights);
    runtime_->device.ops().set_deterministic(true);
  }

  // Makes column 0 of the hidden states non-zero for the offender alone, and lets layer `layer`
  // multiply it by `factor` in its keys or values.
  void let_offend(int layer, KvPart part, float factor) {
    ModelWeights& weights = runtime_->weights;
    {
      const WeightView table = view_of(weights, runtime_->model, "token_embedding");
      Changed embedding(runtime_->device, table);
      for (int64_t id = 0; id < table.rows; ++id)
        embedding.set(id, 0, id == kOffender ? 1.0F : 0.0F);
    }
    const WeightView matrix =
        view_of(weights, runtime_->model, part == KvPart::kKeys ? "key" : "value", layer);
    Changed changed(runtime_->device, matrix);
    for (int64_t row = 0; row < matrix.rows; ++row) changed.set(row, 0, factor);
  }

  // Needed if an offending layer is not the first one: earlier layers would make column 0 non-zero
  // for all tokens.
  void stop_layers_from_writing_column_0() {
    for (int layer = 0; layer < runtime_->model.spec.layer_count(); ++layer) {
      for (const char* name : {"attention_out", "mlp_down"}) {
        const WeightView matrix = view_of(runtime_->weights, runtime_->model, name, layer);
        Changed changed(runtime_->device, matrix);
        for (int64_t column = 0; column < matrix.cols; ++column) changed.set(0, column, 0);
      }
    }
  }

  std::map<RequestId, Ended> run(Engine& engine) {
    std::map<RequestId, Ended> all;
    const auto sink = [&](const GenerationEvent& event) {
      Ended& ended = all[event.id];
      if (event.token) ended.answer.ids.push_back(*event.token);
      if (event.finish) ended.answer.finish = event.finish;
      ended.error += event.error;
    };
    for (int steps = 0; engine.step(sink); ++steps) {
      if (steps > 10'000) {
        ADD_FAILURE() << "the engine does not come to an end";
        break;
      }
    }
    return all;
  }

  bool has_half_activations() const {
    return runtime_->device.activation_type(GetParam().weights) == DType::kF16;
  }
  // More than the scales of int8 hold. F16 activations cannot have such numbers: they saturate.
  float too_much() const { return GetParam().weights == DType::kF16 ? 60000.0F : 1e9F; }

  GenerationRequest offending_request() const {
    GenerationRequest request = good_request(40, 9);
    request.prompt[17] = kOffender;
    return request;
  }

  // Returns a request that does not sample the offender itself.
  static GenerationRequest good_request(int prompt_length, uint32_t seed, float temperature = 0) {
    GenerationRequest request = make_request(prompt_length, seed, 24, temperature);
    request.sampling.logit_bias = {{kOffender, -1000.0F}};
    return request;
  }

  // Returns the answer of the request alone in an engine.
  Answer alone(const GenerationRequest& request, KvType type) {
    KvCache kv = runtime_->make_kv(40, type);
    Decoder decoder = runtime_->make_decoder(256);
    Engine engine(decoder, kv, nullptr, {});
    const RequestId id = engine.submit(request);
    const Ended ended = run(engine)[id];
    EXPECT_EQ(ended.error, "");
    return ended.answer;
  }

  std::optional<TinyRuntime> runtime_;
};

TEST_P(NotNumbersTest, OnlyTheRequestEndsWhoseKeysDoNotFit) {
  for (const KvPart part : {KvPart::kKeys, KvPart::kValues}) {
    for (const KvType type : {KvType::kF16, KvType::kInt8, KvType::kInt4}) {
      SCOPED_TRACE(kv_type_name(type));
      SetUp();
      if (IsSkipped()) return;
      let_offend(0, part, too_much());
      // There are few blocks, so those of a request that ended are soon another's.
      KvCache kv = runtime_->make_kv(14, type);
      Decoder decoder = runtime_->make_decoder(64);
      Engine engine(decoder, kv, nullptr,
                    {.max_step_tokens = 48, .admission = {.max_sequences = 3}});
      std::map<RequestId, GenerationRequest> good;
      std::vector<RequestId> bad;
      for (uint32_t n = 0; n < 12; ++n) {
        if (n % 3 == 1) {
          bad.push_back(engine.submit(offending_request()));
        } else {
          const GenerationRequest request =
              good_request(20 + static_cast<int>(n), n, n % 2 == 0 ? 0.0F : 0.7F);
          good[engine.submit(request)] = request;
        }
      }
      const auto all = run(engine);
      for (const RequestId id : bad) {
        const Ended& ended = all.at(id);
        EXPECT_EQ(ended.answer.finish, FinishReason::kError);
        EXPECT_TRUE(ended.answer.ids.empty());
        EXPECT_NE(ended.error.find("layer 0 "), std::string::npos) << ended.error;
        EXPECT_NE(ended.error.find(part == KvPart::kKeys ? "a key " : "a value "),
                  std::string::npos)
            << ended.error;
        EXPECT_THAT(ended.error, testing::ContainsRegex("--kv-type (bf16 or )?f32"));
      }
      for (const auto& [id, request] : good) {
        const Ended& ended = all.at(id);
        EXPECT_EQ(ended.error, "");
        EXPECT_EQ(ended.answer, alone(request, type));
      }
    }
  }
}

TEST_P(NotNumbersTest, TheLayerIsNamed) {
  stop_layers_from_writing_column_0();
  let_offend(2, KvPart::kKeys, too_much());
  KvCache kv = runtime_->make_kv(20, KvType::kF16);
  Decoder decoder = runtime_->make_decoder(64);
  Engine engine(decoder, kv, nullptr, {});
  const RequestId id = engine.submit(offending_request());
  const Ended ended = run(engine)[id];
  EXPECT_NE(ended.error.find("layer 2 "), std::string::npos) << ended.error;
}

// The request samples the offender itself, in a step of one token, which has kernels of its own.
TEST_P(NotNumbersTest, AnAnswerEndsWhereItLeavesTheRange) {
  runtime_->device.ops().set_deterministic(false);
  let_offend(0, KvPart::kKeys, too_much());
  KvCache kv = runtime_->make_kv(20, KvType::kF16);
  Decoder decoder = runtime_->make_decoder(64);
  Engine engine(decoder, kv, nullptr, {});
  GenerationRequest request = make_request(5, 3);
  request.sampling.logit_bias = {{kOffender, 1000.0F}};
  const RequestId id = engine.submit(request);
  const Ended ended = run(engine)[id];
  EXPECT_EQ(ended.answer.ids, std::vector<TokenId>{kOffender});
  EXPECT_EQ(ended.answer.finish, FinishReason::kError);
  EXPECT_NE(ended.error.find("layer 0 "), std::string::npos) << ended.error;
}

TEST_P(NotNumbersTest, WhatTheKvCacheHoldsGoesOn) {
  if (has_half_activations()) GTEST_SKIP() << "activations of F16 saturate";
  let_offend(0, KvPart::kKeys, 1e9F);
  EXPECT_EQ(alone(offending_request(), KvType::kF32).ids.size(), 24U);
}

// The KV cache is not the cause, so the message does not name it.
TEST_P(NotNumbersTest, AnEmbeddingThatIsNoNumberEndsTheRequestThatUsesIt) {
  {
    Changed embedding(runtime_->device,
                      view_of(runtime_->weights, runtime_->model, "token_embedding"));
    embedding.set(kOffender, 5, NAN);
  }
  ASSERT_FALSE(runtime_->model.spec.has_tied_head()) << "the head would have it for everybody";
  KvCache kv = runtime_->make_kv(14, KvType::kF16);
  Decoder decoder = runtime_->make_decoder(64);
  Engine engine(decoder, kv, nullptr, {.max_step_tokens = 48});
  const RequestId bad = engine.submit(offending_request());
  const GenerationRequest request = good_request(21, 4);
  const RequestId good = engine.submit(request);
  auto all = run(engine);
  EXPECT_EQ(all[bad].answer.finish, FinishReason::kError);
  EXPECT_NE(all[bad].error.find("damaged"), std::string::npos) << all[bad].error;
  EXPECT_EQ(all[bad].error.find("--kv-type"), std::string::npos) << all[bad].error;
  EXPECT_EQ(all[good].answer, alone(request, KvType::kF16));
}

TEST_P(NotNumbersTest, PerplexityIsAnErrorInstead) {
  let_offend(0, KvPart::kValues, too_much());
  KvCache kv = runtime_->make_kv(40, KvType::kF16);
  Decoder decoder = runtime_->make_decoder(64);
  std::vector<TokenId> text = tiny_prompt(128, 1);
  EXPECT_GT(perplexity(decoder, kv, text, {.context = 32}).perplexity, 1);
  text[70] = kOffender;
  try {
    perplexity(decoder, kv, text, {.context = 32});
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    const std::string what = error.what();
    EXPECT_NE(what.find("layer 0 "), std::string::npos) << what;
    EXPECT_NE(what.find("a value "), std::string::npos) << what;
  }
}

INSTANTIATE_TEST_SUITE_P(Settings, NotNumbersTest, testing::ValuesIn(settings()), setting_name);

}  // namespace
}  // namespace spillway::testing_models
