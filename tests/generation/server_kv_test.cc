// SPDX-License-Identifier: Apache-2.0
// A server whose KV is in all memories: an accelerator swaps layers, as many as the engine finds
// useful while it serves, blocks go to host memory and disk, and sequences are preempted. Answers
// are those that each request has alone, and /metrics reports what happened.
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "base/test_scoped_folder.h"
#include "engine/answer_lengths.h"
#include "kv/kv_store.h"
#include "memory/block_folder.h"
#include "predict/simple_predictors.h"
#include "serve/api/api_server.h"
#include "serve/http/http_client.h"
#include "storage/async_io.h"
#include "tests/generation/swapping_runtime.h"

namespace spillway::testing_models {
namespace {

using nlohmann::json;

// A server over one engine, on a free port.
class RunningServer {
 public:
  explicit RunningServer(Engine& engine)
      : model_("tiny", nullptr,
               {.max_sequence_tokens = engine.max_sequence_tokens(),
                .vocab_size = tiny_model("llama-deep").spec.vocab_size}) {
    server_.start(engine, model_, /*max_outstanding=*/64, {}, {.model = "tiny", .plan = "test"});
  }
  ~RunningServer() { server_.stop(); }

  json choices_of(json question) {
    question["model"] = "tiny";
    HttpResponse response = client().post("/v1/completions", {}, question.dump());
    const std::string body = response.read_up_to(1 << 20);
    EXPECT_EQ(response.status(), 200) << body;
    return json::parse(body).value("choices", json());
  }
  // Sends all questions concurrently.
  std::vector<json> choices_of_all(const std::vector<json>& questions) {
    std::vector<json> choices(questions.size());
    std::vector<std::thread> clients;
    for (size_t i = 0; i < questions.size(); ++i)
      clients.emplace_back([&, i] { choices[i] = choices_of(questions[i]); });
    for (std::thread& each : clients) each.join();
    return choices;
  }
  // Returns the value of a line of /metrics, or -1 if there is none.
  double metric(const std::string& name) {
    std::istringstream lines(client().get("/metrics", {}).read_up_to(1 << 20));
    for (std::string line; std::getline(lines, line);)
      if (line.starts_with(name + " ")) return std::stod(line.substr(name.size()));
    return -1;
  }

 private:
  HttpClient client() {
    return {{.host = "127.0.0.1", .port = server_.port(), .path = ""}, cancel_};
  }

  std::atomic<bool> cancel_ = false;
  ServedModel model_;
  ApiServer server_{
      ApiServerOptions{.http = {}, .keys = std::nullopt, .model = ModelNames("tiny")}};
};

// Half of the prompts share a prefix.
std::vector<json> questions() {
  std::vector<json> all;
  for (int n = 0; n < 16; ++n) {
    std::vector<TokenId> prompt = tiny_prompt(n % 2 == 0 ? 48 : 20, n % 2 == 0 ? 99 : 7);
    for (const TokenId id : tiny_prompt(5 + 3 * n, static_cast<uint32_t>(n + 1)))
      prompt.push_back(id);
    all.push_back({{"prompt", prompt},
                   {"max_tokens", 30 + 5 * (n % 4)},
                   {"temperature", n % 3 == 0 ? 0.8 : 0.0},
                   {"seed", n}});
  }
  return all;
}

// Options that are on besides layer swapping, a store in host memory and on disk, and preemption.
struct Beside {
  const char* name;
  KvType type = KvType::kF32;
  bool predicts = false;
  int32_t host_blocks = 0;  // for sequences that the CPU attends to
};

class ServerKvTest : public testing::TestWithParam<Beside> {};

TEST_P(ServerKvTest, AnswersAreThoseOfEachAlone) {
  const auto& [name, type, predicts, host_blocks] = GetParam();
  SwappingRuntime runtime("llama-deep", /*max_delay_us=*/50);
  const std::vector<json> asked = questions();
  std::vector<json> wanted;
  {
    KvCache kv = runtime.make_kv(200, 0, kSpareBuffers, type);
    Decoder decoder = runtime.make_decoder(64);
    Engine engine(decoder, kv, nullptr, {});
    RunningServer server(engine);
    for (const json& question : asked) wanted.push_back(server.choices_of(question));
    EXPECT_EQ(server.metric("spillway_kv_swapped_layers"), 0);
    EXPECT_EQ(server.metric("spillway_kv_layer_swap_bytes_total"), 0);
    EXPECT_EQ(server.metric("spillway_kv_layer_swap_ahead_total"), 0);
    EXPECT_EQ(server.metric("spillway_kv_layer_swap_waits_total"), 0);
    EXPECT_EQ(server.metric("spillway_kv_layer_swap_change_seconds_total"), 0);
  }
  KvCache kv = runtime.make_kv(12, kLayers - 1, kSpareBuffers, type, host_blocks);
  const ScopedFolder folder(std::filesystem::temp_directory_path());
  IoQueue queue;
  KvStore store(
      kv, *runtime.transfers, runtime.host, {.slots = 48},
      BlockFolder::try_open(queue, {.dir = folder.path(),
                                    .block_bytes = static_cast<size_t>(kv.shape().block_bytes()),
                                    .salt = "tiny",
                                    .budget_bytes = 1 << 26}));
  Decoder decoder = runtime.make_decoder(64);
  AnswerLengths lengths(std::make_unique<RunningMeanPredictor>(LengthBuckets::linear(512)), {}, "");
  Engine engine(decoder, kv, nullptr,
                {.admission = {.max_sequences = 8},
                 .scheduling = {.packs_predicted = predicts},
                 .lengths = predicts ? &lengths : nullptr,
                 .reuse_prefixes = true,
                 .store = &store,
                 .adapts_swapped_layers = true});
  RunningServer server(engine);
  for (int round = 0; round < 3; ++round) {
    SCOPED_TRACE(testing::Message() << "round " << round);
    EXPECT_EQ(server.choices_of_all(asked), wanted);
  }
  EXPECT_GT(server.metric("spillway_kv_layer_swap_changes_total"), 0) << "requests waited for room";
  EXPECT_GT(server.metric("spillway_kv_layer_swap_change_seconds_total"), 0);
  EXPECT_GT(server.metric("spillway_kv_layer_swap_bytes_total"), 0);
  EXPECT_GT(server.metric("spillway_kv_layer_swap_ahead_total"), 0);
  EXPECT_LE(server.metric("spillway_kv_layer_swap_early_total"),
            server.metric("spillway_kv_layer_swap_ahead_total"));
  EXPECT_GT(server.metric("spillway_kv_layer_swap_waits_total"), 0) << "copies come late here";
  EXPECT_GT(server.metric("spillway_kv_layer_swap_wait_seconds_total"), 0);
  EXPECT_GE(server.metric("spillway_kv_expansion"), 1);
  EXPECT_GT(server.metric("spillway_kv_store_moved_bytes_total{way=\"to_host\"}"), 0);
  EXPECT_EQ(server.metric("spillway_kv_blocks{state=\"used\",tier=\"gpu\"}"), 0);
  // With predictions, or with room in host memory, there may be no preemption.
  if (predicts || host_blocks > 0) return;
  EXPECT_GT(server.metric("spillway_preemptions_total"), 0);
  EXPECT_GT(server.metric("spillway_prefix_hit_tokens_total{tier=\"host\"}"), 0);
}

INSTANTIATE_TEST_SUITE_P(With, ServerKvTest,
                         testing::Values(Beside{.name = "NothingElse"},
                                         Beside{.name = "CompressedKv", .type = KvType::kInt8},
                                         Beside{.name = "PredictedLengths", .predicts = true},
                                         Beside{.name = "KvInHostMemory", .host_blocks = 24},
                                         Beside{"AllOfIt", KvType::kInt8, /*predicts=*/true,
                                                /*host_blocks=*/24}),
                         [](const auto& of) { return std::string(of.param.name); });

}  // namespace
}  // namespace spillway::testing_models
