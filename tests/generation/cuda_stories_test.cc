// SPDX-License-Identifier: Apache-2.0
// Trained models give the same text and perplexity on a GPU as on the CPU.
//
// Quantized weights are widened to F32 first, which is exact: with blocks of 8 bits the CPU rounds
// activations to 8 bits too, so that the two would compute different things.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "cpu/cpu_device.h"
#include "cuda/cuda.h"
#include "engine/engine.h"
#include "engine/perplexity.h"
#include "engine/test_model.h"
#include "storage/gguf_convert.h"
#include "storage/model_files.h"
#include "storage/test_folder.h"

namespace spillway {
namespace {

namespace fs = std::filesystem;

constexpr int kTokens = 128;
constexpr const char* kPrompts[] = {"Once upon a time", "The old king had a dog", "Lily and Ben"};

fs::path models_folder() {
  const char* const folder = std::getenv("SPILLWAY_TEST_MODELS");
  return folder != nullptr ? fs::path(folder) : fs::path(SPW_SHARED_DATA) / "models";
}

// A model on a device.
class Stories {
 public:
  Stories(std::unique_ptr<Device> device, const fs::path& path)
      : device_(std::move(device)), loaded_(load_model(*device_, path.string(), {})) {}

  std::vector<TokenId> tokens_of(const std::string& text) const {
    return loaded_->require_tokenizer().encode(text, {.add_special = true});
  }

  // Returns what follows each of the prompts, computed all together or one after the other.
  std::vector<std::vector<TokenId>> continued(const SamplingParams& sampling, bool together) {
    std::vector<std::vector<TokenId>> answers(std::size(kPrompts));
    KvCache kv = make_kv(static_cast<int64_t>(std::size(kPrompts)));
    Decoder decoder(*device_, loaded_->model.spec, loaded_->weights, 64);
    Engine engine(decoder, kv, nullptr, {});
    std::vector<RequestId> ids;
    const auto run = [&] {
      while (engine.step([&](const GenerationEvent& event) {
        EXPECT_TRUE(event.error.empty()) << event.error;
        for (size_t i = 0; i < ids.size(); ++i) {
          if (event.token && event.id == ids[i]) answers[i].push_back(*event.token);
        }
      })) {
      }
    };
    for (const char* prompt : kPrompts) {
      GenerationRequest request;
      request.prompt = tokens_of(prompt);
      request.max_tokens = kTokens;
      request.sampling = sampling;
      request.ignore_end = true;
      ids.push_back(engine.submit(request));
      if (!together) run();
    }
    run();
    return answers;
  }

  double perplexity_of(const std::vector<TokenId>& tokens) {
    KvCache kv = make_kv(1);
    Decoder decoder(*device_, loaded_->model.spec, loaded_->weights, 128);
    PerplexityOptions options;
    options.context = 128;
    return perplexity(decoder, kv, tokens, options).perplexity;
  }

 private:
  KvCache make_kv(int64_t sequences) {
    return make_kv_cache(*device_, loaded_->model.spec, default_kv_type(loaded_->model),
                         kTokens + 64, sequences);
  }

  std::unique_ptr<Device> device_;
  std::unique_ptr<LoadedModel> loaded_;
};

class CudaStoriesTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const CudaDevices found = list_cuda_devices();
    if (found.devices.empty()) GTEST_SKIP() << "no GPU: " << found.none_reason;
    const fs::path stored = models_folder() / GetParam();
    if (!fs::exists(stored)) GTEST_SKIP() << "needs " << stored;
    path_ = folder_.path() / "f32.gguf";
    convert_gguf(convert_input(open_model(stored)), *try_type_mix("F32"), path_);
  }
  Stories on_cpu() const { return {std::make_unique<CpuDevice>(CpuDeviceOptions{}), path_}; }
  Stories on_gpu() const { return {make_cuda_device({}), path_}; }

  TempFolder folder_;
  fs::path path_;
};

TEST_P(CudaStoriesTest, GivesTheGreedyTokensOfTheCpu) {
  Stories cpu = on_cpu(), gpu = on_gpu();
  const auto expected = cpu.continued({}, false);
  for (const auto& answer : expected) ASSERT_EQ(answer.size(), size_t{kTokens});
  EXPECT_EQ(gpu.continued({}, false), expected);
  EXPECT_EQ(gpu.continued({}, true), expected);
}

// The perplexity is that of texts sampled from the model itself.
TEST_P(CudaStoriesTest, HasThePerplexityOfTheCpu) {
  Stories cpu = on_cpu(), gpu = on_gpu();
  SamplingParams sampling;
  sampling.temperature = 1, sampling.seed = 3;
  std::vector<TokenId> text;
  for (const auto& answer : cpu.continued(sampling, true))
    text.insert(text.end(), answer.begin(), answer.end());
  const double expected = cpu.perplexity_of(text);
  EXPECT_GT(expected, 1.5);
  EXPECT_LT(expected, 100);
  EXPECT_LE(std::abs(gpu.perplexity_of(text) / expected - 1), 1e-3);
}

INSTANTIATE_TEST_SUITE_P(Models, CudaStoriesTest,
                         testing::Values("stories260K-f32.gguf", "stories15M-Q8_0.gguf"),
                         [](const auto& model) {
                           const std::string name = model.param;
                           return name.substr(0, name.find('-'));
                         });

}  // namespace
}  // namespace spillway
