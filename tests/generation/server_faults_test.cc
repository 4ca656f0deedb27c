// SPDX-License-Identifier: Apache-2.0
// A device fails under a running server: requests that were being computed are told to try again,
// and all others are answered as if nothing had happened.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "base/fault_points.h"
#include "cpu/emulated_accelerator.h"
#include "engine/engine.h"
#include "serve/api/api_server.h"
#include "serve/http/http_client.h"
#include "tests/generation/tiny_models.h"

namespace spillway::testing_models {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;

// Runs with swapped layers, and without.
class ServerFaultsTest : public testing::TestWithParam<bool> {
 protected:
  struct Answer {
    int status = 0;
    std::string retry_after;
    std::string body;
  };

  ServerFaultsTest() {
    runtime_.device.ops().set_deterministic(true);
    if (GetParam()) engine_.change_swapped_layers(kSwapped);
    server_.start(engine_, model_, /*max_outstanding=*/64, {}, {.model = "tiny", .plan = "test"});
  }
  ~ServerFaultsTest() override {
    disarm_faults();
    server_.stop();
  }

  static std::unique_ptr<Device> make_device() {
    EmulatedAcceleratorOptions options;
    options.draws = true;
    return std::make_unique<EmulatedAccelerator>(options);
  }

  static Answer read(HttpResponse response) {
    return {response.status(), std::string(response.header("retry-after")),
            response.read_up_to(1 << 20)};
  }
  Answer get(std::string_view path) { return read(client().get(path, {})); }
  Answer complete(json fields) {
    fields["model"] = "tiny";
    return read(client().post("/v1/completions", {}, fields.dump()));
  }
  HttpClient client() {
    return {{.host = "127.0.0.1", .port = server_.port(), .path = ""}, cancel_};
  }

  static json question(int number) {
    return {{"prompt", tiny_prompt(20 + number, static_cast<uint32_t>(number))},
            {"max_tokens", 8},
            {"temperature", 0.8},
            {"seed", number},
            {"user", std::to_string(number)}};
  }
  static json choices(const Answer& answer) { return json::parse(answer.body).at("choices"); }

  static void expect_told_to_come_again(const Answer& answer) {
    EXPECT_EQ(answer.status, 503) << answer.body;
    EXPECT_FALSE(answer.retry_after.empty());
    const json error = json::parse(answer.body).at("error");
    EXPECT_EQ(error.at("type"), "server_error");
    EXPECT_THAT(error.at("message").get<std::string>(), HasSubstr("try again"));
    EXPECT_THAT(answer.body, Not(HasSubstr("emulated"))) << "what failed inside is for the log";
  }

  // No KV block is in use, and the device has as much memory in use as before.
  void expect_all_given_back(uint64_t device_bytes) {
    EXPECT_THAT(get("/metrics").body,
                HasSubstr("spillway_kv_blocks{state=\"used\",tier=\"gpu\"} 0"));
    EXPECT_EQ(runtime_.device.usage().total(), device_bytes);
  }

  static constexpr int kSwapped = 6;

  std::atomic<bool> cancel_ = false;
  CpuDevice host_{CpuDeviceOptions{.threads = 1}};
  TinyRuntime runtime_{make_device(), "llama-deep", DType::kF32};
  const ModelSpec& spec_ = runtime_.model.spec;
  KvCache kv_{runtime_.device,
              host_,
              kv_shapes(spec_.states, KvType::kF32),
              {.device_blocks = 60, .most_swapped = GetParam() ? kSwapped : 0}};
  Decoder decoder_{runtime_.device, spec_, runtime_.weights, {.max_tokens = 64, .host = &host_}};
  Engine engine_{decoder_,
                 kv_,
                 nullptr,
                 {.admission = {.max_sequences = 2},
                  .scheduling = {.order = OrderKind::kFair},
                  .reuse_prefixes = true}};
  ServedModel model_{"tiny",
                     nullptr,
                     {.max_sequence_tokens = engine_.max_sequence_tokens(),
                      .vocab_size = decoder_.spec().vocab_size}};
  ApiServer server_{
      ApiServerOptions{.http = {}, .keys = std::nullopt, .model = ModelNames("tiny")}};
};

TEST_P(ServerFaultsTest, AFailedStepEndsItsRequestsWith503AndNothingElse) {
  const json expected = choices(complete(question(1)));
  const uint64_t device_bytes = runtime_.device.usage().total();
  std::vector<const char*> points = {"step.device", "draw.device"};
  if (GetParam()) points.push_back("copy.device");
  for (const char* const point : points) {
    for (const uint64_t nth : {1, 2, 5}) {
      SCOPED_TRACE(point);
      arm_fault(point, nth, FaultKind::kEio);
      expect_told_to_come_again(complete(question(1)));
      disarm_faults();
      EXPECT_EQ(get("/health").status, 200) << "one failure is no reason to give up";
      const Answer again = complete(question(1));
      EXPECT_EQ(again.status, 200);
      EXPECT_EQ(choices(again), expected);
      expect_all_given_back(device_bytes);
    }
  }
}

TEST_P(ServerFaultsTest, AStreamThatHasBegunEndsWithAnError) {
  for (const uint64_t nth : {1, 4}) {
    json fields = question(2);
    fields["stream"] = true;
    arm_fault("step.device", nth, FaultKind::kEio);
    const Answer answer = complete(fields);
    disarm_faults();
    if (nth == 1) {
      expect_told_to_come_again(answer);  // the head is sent with the first token
      continue;
    }
    EXPECT_EQ(answer.status, 200) << "its head was out";
    EXPECT_THAT(answer.body, HasSubstr("data: {\"error\":{"));
    EXPECT_THAT(answer.body, HasSubstr("try again"));
    EXPECT_THAT(answer.body, Not(HasSubstr("[DONE]"))) << "nobody takes the half for the whole";
    EXPECT_EQ(complete(question(2)).status, 200);
  }
}

// Two requests are running and the others wait; the waiting ones are not affected.
TEST_P(ServerFaultsTest, WhoWaitsIsAnsweredAsIfNothingHadBeen) {
  constexpr int kClients = 8;
  std::vector<json> expected;
  for (int i = 0; i < kClients; ++i) expected.push_back(choices(complete(question(i))));
  const auto ask_all = [&] {
    std::vector<Answer> answers(kClients);
    std::vector<std::thread> clients;
    for (int i = 0; i < kClients; ++i)
      clients.emplace_back([&, i] { answers[static_cast<size_t>(i)] = complete(question(i)); });
    for (std::thread& client : clients) client.join();
    return answers;
  };
  for (const Answer& answer : ask_all()) EXPECT_EQ(answer.status, 200);
  const uint64_t device_bytes = runtime_.device.usage().total();
  arm_fault("step.device", 9, FaultKind::kEio);
  const std::vector<Answer> answers = ask_all();
  disarm_faults();
  int failed = 0;
  for (size_t i = 0; i < kClients; ++i) {
    if (answers[i].status == 200) {
      EXPECT_EQ(choices(answers[i]), expected[i]);
      continue;
    }
    expect_told_to_come_again(answers[i]);
    ++failed;
  }
  EXPECT_GE(failed, 1);
  EXPECT_LE(failed, 2);
  expect_all_given_back(device_bytes);
}

TEST_P(ServerFaultsTest, ADeviceThatFailsEachTimeIsSaidUntilItWorksAgain) {
  const json expected = choices(complete(question(3)));
  arm_fault("step.device", 1, FaultKind::kEio, ~uint64_t{0});
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(get("/health").status, 200);
    expect_told_to_come_again(complete(question(3)));
  }
  const Answer health = get("/health");
  EXPECT_EQ(health.status, 503);
  EXPECT_EQ(json::parse(health.body).at("status"), "failing");
  expect_told_to_come_again(complete(question(3)));
  EXPECT_THAT(get("/metrics").body, HasSubstr("spillway_failed_steps_total 4"));
  disarm_faults();
  EXPECT_EQ(choices(complete(question(3))), expected);
  EXPECT_EQ(get("/health").status, 200);
}

INSTANTIATE_TEST_SUITE_P(Layers, ServerFaultsTest, testing::Bool(),
                         [](const auto& of) { return of.param ? "TakeTurns" : "Stay"; });

}  // namespace
}  // namespace spillway::testing_models
