// SPDX-License-Identifier: Apache-2.0
#include "plan/plan.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"

namespace spillway {
namespace {

using testing::HasSubstr;

std::string error_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    return error.what();
  }
  return "no error";
}

TEST(PlanTest, SurvivesBeingWrittenAndRead) {
  Plan plan;
  plan.weights = {0.2, 0.7, 0.1};
  plan.embeddings = Tier::kHost;
  plan.kv = {0, 1, 0};
  plan.micro_batch = 48;
  plan.micro_batches = 3;
  plan.schedule = ScheduleKind::kDiagonal;
  plan.attention = AttentionPlace::kGpu;
  plan.cpu_attention = 0.25;
  plan.overlap = false;
  const std::string text = plan_to_json(plan);
  const Plan read = parse_plan(text, "p");
  EXPECT_EQ(plan_to_json(read), text);
  EXPECT_DOUBLE_EQ(read.weights.host, 0.7);
  EXPECT_EQ(read.embeddings, Tier::kHost);
  EXPECT_EQ(read.micro_batches, 3);
  EXPECT_EQ(read.schedule, ScheduleKind::kDiagonal);
  EXPECT_FALSE(read.all_on_device());
}

TEST(PlanTest, EachVersionHasItsOwnFields) {
  EXPECT_EQ(parse_plan(R"({"version": 2, "at_once": 9})", "p").max_concurrent, 9);
  EXPECT_EQ(parse_plan(R"({"version": 3, "max_concurrent": 9})", "p").max_concurrent, 9);
  EXPECT_EQ(parse_plan(R"({"max_concurrent": 9})", "p").max_concurrent, 9);
  const auto error = [](const char* text) { return error_of([&] { parse_plan(text, "p"); }); };
  EXPECT_EQ(error(R"({"at_once": 9})"),
            "p: at_once is a field of plans of version 2, and this one is of version 3; give "
            "max_concurrent instead");
  EXPECT_EQ(error(R"({"version": 2, "deterministic": true})"),
            "p: deterministic is a field of plans of version 3, and this one is of version 2");
  EXPECT_THAT(error(R"({"wieghts": 1})"), Not(HasSubstr("at_once")));
}

TEST(PlanTest, KeepsTheOptionsAndBudgetsOfTheRun) {
  Plan plan;
  plan.max_concurrent = 12;
  plan.deterministic = true;
  plan.kv_expansion = KvExpansion{.layers = std::nullopt};
  plan.lookup_drafts = true;
  plan.memory = PlanMemory{.device = uint64_t{8} << 30, .disk = 0};
  const std::string text = plan_to_json(plan);
  const Plan read = parse_plan(text, "p");
  EXPECT_EQ(plan_to_json(read), text);
  EXPECT_EQ(read.max_concurrent, 12);
  EXPECT_EQ(read.deterministic, true);
  EXPECT_EQ(read.kv_expansion, plan.kv_expansion);
  EXPECT_EQ(read.lookup_drafts, true);
  EXPECT_EQ(read.memory, plan.memory);
}

// Journals and KV folders of earlier releases contain its digest.
TEST(PlanTest, WeightPlacementsHaveTheirTextForEver) {
  Plan plan;
  plan.weights = {0.25, 0.75, 0};
  plan.embeddings = Tier::kHost;
  plan.overrides = {{.layers = {{0, 3}}, .matrix = "mlp_down", .home = Tier::kHost}};
  plan.kv = {0, 1, 0};
  plan.memory = PlanMemory{};
  EXPECT_EQ(weight_placement_text(plan), R"({
  "version": 2,
  "weights": {
    "disk": 0.0,
    "gpu": 25.0,
    "host": 75.0
  },
  "embeddings": "host",
  "kv": {
    "disk": 0.0,
    "gpu": 100.0,
    "host": 0.0
  },
  "activations": {
    "disk": 0.0,
    "gpu": 100.0,
    "host": 0.0
  },
  "micro_batch": 0,
  "micro_batches": 0,
  "schedule": "continuous",
  "attention": "auto",
  "cpu_attention": null,
  "overlap": true,
  "overrides": [
    {
      "layers": "0-3",
      "role": "mlp_down",
      "home": "host"
    }
  ]
})");
}

TEST(PlanTest, KeepsWhatTheRunIsMadeWith) {
  Plan plan;
  plan.compress_weights = true;
  plan.kv_type = KvType::kInt8;
  plan.attention_topk = 0.25F;
  plan.context = 4096;
  plan.chunk = 512;
  plan.sequences = 48;
  plan.cpu_linear = {{1, 0.5, {{"mlp_up", 0.625}, {"head", 0}}}, {8, 0.25}};
  plan.made_for = {"model-sum", "machine-sum"};
  const std::string text = plan_to_json(plan);
  const Plan read = parse_plan(text, "p");
  EXPECT_EQ(plan_to_json(read), text);
  EXPECT_EQ(read.compress_weights, true);
  EXPECT_EQ(read.kv_type, KvType::kInt8);
  EXPECT_EQ(read.attention_topk, 0.25F);
  EXPECT_EQ(read.context, 4096);
  EXPECT_EQ(read.chunk, 512);
  EXPECT_EQ(read.sequences, 48);
  EXPECT_EQ(read.cpu_linear, plan.cpu_linear);
  EXPECT_EQ(read.made_for, plan.made_for);
}

TEST(PlanTest, NamedMatricesSurviveBeingWrittenAndRead) {
  const Plan read = parse_plan(R"({"overrides": [
      {"layers": "0-3,40", "role": "mlp_down", "home": "host"}, {"home": "disk"},
      {"role": "attention_out", "home": "gpu"}]})",
                               "p");
  const std::vector<WeightOverride> expected = {
      {.layers = {{0, 3}, {40, 40}}, .matrix = "mlp_down", .home = Tier::kHost},
      {.home = Tier::kDisk},
      {.matrix = "attention_out", .home = Tier::kDevice}};
  EXPECT_EQ(read.overrides, expected);
  EXPECT_FALSE(read.all_on_device());
  const std::string text = plan_to_json(read);
  EXPECT_THAT(text, HasSubstr(R"("layers": "0-3,40")"));
  EXPECT_EQ(parse_plan(text, "p").overrides, expected);
  EXPECT_EQ(plan_to_json(parse_plan(text, "p")), text);
}

TEST(PlanTest, ResidenceIsEvenUnlessItIsNamed) {
  EXPECT_EQ(parse_plan("{}", "p").residence, Residence::kEven);
  EXPECT_THAT(plan_to_json({}), Not(HasSubstr("residence")));
  const Plan by_gain = parse_plan(R"({"residence": "gain"})", "p");
  EXPECT_EQ(by_gain.residence, Residence::kByGain);
  EXPECT_EQ(parse_plan(plan_to_json(by_gain), "p").residence, Residence::kByGain);
  EXPECT_EQ(error_of([] { parse_plan(R"({"residence": "greedy"})", "p"); }),
            "p: residence is 'greedy'; give even or gain");
}

TEST(PlanTest, WhatIsNotSaidIsOnTheDevice) {
  const Plan plan = parse_plan("{}", "p");
  EXPECT_TRUE(plan.all_on_device());
  EXPECT_TRUE(plan.overlap);
  EXPECT_FALSE(parse_plan(R"({"embeddings": "host"})", "p").all_on_device());
}

TEST(PlanTest, ErrorsNameFileAndField) {
  const auto error = [](const char* text) {
    return error_of([&] { parse_plan(text, "my.json"); });
  };
  EXPECT_THAT(error("{"), HasSubstr("my.json: not JSON"));
  EXPECT_THAT(error("[]"), HasSubstr("my.json: not a plan"));
  EXPECT_THAT(error(R"({"weight": 1})"), HasSubstr("my.json: weight is not a field"));
  EXPECT_THAT(error(R"({"weights": 1})"), HasSubstr("my.json: weights is not an object"));
  EXPECT_THAT(error(R"({"weights": {"gpu": 50}})"), HasSubstr("add up to 50 percent"));
  EXPECT_THAT(error(R"({"weights": {"gpu": 150, "host": -50}})"), HasSubstr("between 0 and 100"));
  EXPECT_THAT(error(R"({"kv": {"tape": 100}})"), HasSubstr("give gpu, host or disk"));
  EXPECT_THAT(error(R"({"embeddings": "disk"})"), HasSubstr("give gpu or host"));
  EXPECT_THAT(error(R"({"schedule": "spiral"})"), HasSubstr("spiral"));
  EXPECT_THAT(error(R"({"micro_batches": -1})"), HasSubstr("micro_batches is -1"));
  EXPECT_THAT(error(R"({"micro_batch": 1.5})"), HasSubstr("not a whole number"));
  EXPECT_THAT(error(R"({"overlap": "no"})"), HasSubstr("true or false"));
  EXPECT_EQ(error(R"({"version": 1})"),
            "my.json: version is 1; this program reads versions 2 and 3");
  EXPECT_THAT(error(R"({"version": null})"), HasSubstr("version is null"));
  EXPECT_THAT(error(R"({"memory": 5})"), HasSubstr("memory is not an object"));
  EXPECT_THAT(error(R"({"memory": {"ram": 5}})"), HasSubstr("no field ram (gpu, host, disk)"));
  EXPECT_THAT(error(R"({"memory": {"gpu": -5}})"), HasSubstr("memory.gpu is not a number of"));
  EXPECT_THAT(error(R"({"kv_expansion": "on"})"), HasSubstr("my.json: kv_expansion is 'on'"));
  EXPECT_THAT(error(R"({"draft": "large"})"), HasSubstr("draft"));
  EXPECT_THAT(error(R"({"kv_type": "f8"})"), HasSubstr("no type of a KV cache"));
  EXPECT_THAT(error(R"({"weight_type": "q4"})"), HasSubstr("give stored or 4-bit"));
  EXPECT_THAT(error(R"({"attention_topk": 2})"), HasSubstr("attention_topk is 2"));
  EXPECT_THAT(error(R"({"context": 0})"), HasSubstr("context is 0"));
  EXPECT_THAT(error(R"({"cpu_linear": [[8, 10], [8, 20]]})"), HasSubstr("tokens grow"));
  EXPECT_THAT(error(R"({"cpu_linear": [[8, 110]]})"), HasSubstr("percent; give 0 to 100"));
  EXPECT_EQ(
      parse_plan(R"({"cpu_linear": [[8, 10, {"up": 5}]]})", "my.json").cpu_linear[0].of("mlp_up"),
      0.05)
      << "names of earlier versions";
  EXPECT_THAT(error(R"({"cpu_linear": [[8, 10, {"gate": 5}]]})"), HasSubstr("no linear op"));
  EXPECT_THAT(error(R"({"cpu_linear": [[8, 10, {"up": 101}]]})"), HasSubstr("give 0 to 100"));
  EXPECT_THAT(error(R"({"overrides": {}})"), HasSubstr("my.json: overrides is not a list"));
  EXPECT_THAT(error(R"({"overrides": [1]})"), HasSubstr("overrides[0] is not an object"));
  EXPECT_THAT(error(R"({"overrides": [{"role": "key"}]})"), HasSubstr("overrides[0] says no home"));
  EXPECT_THAT(error(R"({"overrides": [{"home": "host"}, {"role": "norm", "home": "host"}]})"),
              HasSubstr("overrides[1].role is 'norm', no matrix of a layer (query, key, value, "
                        "attention_out, mlp_gate, mlp_up, mlp_down, or qkv for the first three)"));
  EXPECT_THAT(error(R"({"overrides": [{"home": "tape"}]})"), HasSubstr("give gpu, host or disk"));
  EXPECT_THAT(error(R"({"overrides": [{"home": "gpu", "size": 1}]})"), HasSubstr("[0].size: no"));
  for (const char* layers : {"", "a", "1,", "-1", "1-", "3-1", "99999999999"}) {
    const std::string text =
        fmt::format(R"({{"overrides": [{{"layers": "{}", "home": "gpu"}}]}})", layers);
    EXPECT_THAT(error(text.c_str()), HasSubstr("overrides[0].layers")) << layers;
  }
  EXPECT_THAT(error(R"({"made_for": {"user": "x"}})"), HasSubstr("no field user"));
}

TEST(PlanTest, SharesFromTheCommandLine) {
  const TierShares shares = parse_shares("20,75.5,4.5", "--weights");
  EXPECT_DOUBLE_EQ(shares.device, 0.2);
  EXPECT_DOUBLE_EQ(shares.host, 0.755);
  EXPECT_DOUBLE_EQ(shares.disk, 0.045);
  for (const char* bad :
       {"", "20", "20,80", "20,80,0,0", "a,b,c", "20,80,", "20,80,1", "nan,50,50"}) {
    EXPECT_THAT(error_of([&] { parse_shares(bad, "--weights"); }), HasSubstr("--weights")) << bad;
  }
}

TEST(PlanTest, AttentionThatIsTheSameForEverySequenceFollowsTheHomesOfKv) {
  const auto place = [](TierShares kv) {
    Plan plan;
    plan.kv = kv;
    return same_for_every_sequence(plan);
  };
  EXPECT_EQ(place({1, 0, 0}), AttentionPlace::kCpu);
  EXPECT_EQ(place({0, 1, 0}), AttentionPlace::kCpu);
  EXPECT_EQ(place({0.5, 0.5, 0}), AttentionPlace::kGpu) << "the first ones are on the device";
  EXPECT_EQ(place({0, 0.5, 0.5}), AttentionPlace::kGpu) << "what is on disk comes to the device";
}

TEST(PlanTest, ABlockIsAtWorkAndRowByRowAMicroBatch) {
  Plan plan;
  plan.micro_batch = 3;
  EXPECT_EQ(concurrent_sequences(plan, 8), 8);
  plan.micro_batches = 2;
  EXPECT_EQ(concurrent_sequences(plan, 8), 6);
  EXPECT_EQ(concurrent_sequences(plan, 5), 5);
  plan.schedule = ScheduleKind::kRow;
  EXPECT_EQ(concurrent_sequences(plan, 8), 3);
  EXPECT_EQ(concurrent_sequences(plan, 2), 2);
  plan.micro_batch = 0;
  EXPECT_EQ(concurrent_sequences(plan, 8), 8);
}

TEST(PlanTest, SharesOfLinearLayersAreReadFromAnOption) {
  using Shares = std::vector<CpuLinearShare>;
  EXPECT_EQ(parse_cpu_linear("66", "-x"), (Shares{{kAnyTokens, 0.66}}));
  EXPECT_EQ(parse_cpu_linear("0", "-x"), (Shares{{kAnyTokens, 0}}));
  EXPECT_EQ(parse_cpu_linear("1:62.5,64:50,12", "-x"),
            (Shares{{1, 0.625}, {64, 0.5}, {kAnyTokens, 0.12}}));
  for (const char* wrong :
       {"", "x", "1:", ":5", "101", "-1", "8:5,8:4", "8:5,4:4", "5,6", "1:5,,", "0:5", "nan"}) {
    EXPECT_THROW(parse_cpu_linear(wrong, "-x"), Error) << wrong;
  }
}

}  // namespace
}  // namespace spillway
