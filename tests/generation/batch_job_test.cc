// SPDX-License-Identifier: Apache-2.0
// The results of a batch job do not depend on how often it is interrupted, nor on what runs
// together.
#include "serve/batch_job.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <iterator>

#include "base/error.h"
#include "engine/engine.h"
#include "serve/finished_output.h"
#include "serve/result_lines.h"
#include "storage/test_folder.h"
#include "tests/generation/tiny_models.h"

namespace spillway {
namespace {

using testing_models::tiny_prompt;
using testing_models::TinyRuntime;

// Makes lines with prompts and answers of many lengths. Every seventh line is not a request, and
// every fifth request is refused.
std::string make_input(int lines) {
  std::string text;
  for (int n = 0; n < lines; ++n) {
    if (n % 7 == 3) text += "\nnonsense\n";
    std::vector<int32_t> ids = tiny_prompt(1 + n * 11 % 50, static_cast<uint32_t>(n));
    if (n % 5 == 4) ids.push_back(97);  // outside the vocabulary
    text += fmt::format(
        R"({{"custom_id":"r{}","method":"POST","url":"/v1/completions","body":{{"max_tokens":{},"prompt":[{}]}}}})",
        n, 1 + n * 13 % 40, fmt::join(ids, ","));
    text += '\n';
  }
  return text;
}

class BatchJobTest : public testing::Test {
 protected:
  BatchJobTest() { runtime_.device.ops().set_deterministic(true); }

  struct Limits {
    int32_t blocks = 200;
    int step_tokens = 64;
    int sequences = 5;
    bool in_blocks = false;
  };
  // Runs at most `steps` steps, like a process that is then killed. Returns whether the job was
  // finished.
  bool run(const Limits& limits, int steps, EngineStats* stats = nullptr) {
    const BatchInput input(input_);
    BatchJournal journal(folder_ / "journal", false);
    journal.begin({{"input", input.checksum()}}, 5);
    KvCache kv = runtime_.make_kv(limits.blocks);
    Decoder decoder = runtime_.make_decoder(limits.step_tokens);
    Engine engine(decoder, kv, nullptr,
                  {.max_step_tokens = limits.step_tokens,
                   .admission = {.max_sequences = limits.sequences,
                                 .admit_in_blocks = limits.in_blocks,
                                 .prompts_first = limits.in_blocks}});
    const ServedModel model("tiny", nullptr,
                            {.max_sequence_tokens = engine.max_sequence_tokens(),
                             .vocab_size = decoder.spec().vocab_size});
    const ResultLines lines("k", input);
    EngineClient client(engine);
    BatchJob job(input, lines, journal, model, client,
                 {.fingerprint = "f", .max_outstanding = limits.sequences + 2});
    EXPECT_EQ(job.finished(), job.finished_before());
    while (steps-- > 0) {
      if (job.step()) continue;
      EXPECT_EQ(job.finished(), job.requests());
      journal.write_output(folder_ / "out");
      journal.remove();
      if (stats != nullptr) *stats = client.stats();
      return true;
    }
    return false;
  }
  std::string output() const {
    std::ifstream file(folder_ / "out");
    return {std::istreambuf_iterator<char>(file), {}};
  }

  TempFolder folder_;
  std::filesystem::path input_ = folder_.write("in", make_input(20));
  TinyRuntime runtime_{"llama", DType::kF32, 1};
};

TEST_F(BatchJobTest, ResultsDoNotDependOnWhatRunsTogether) {
  ASSERT_TRUE(run({}, 100'000));
  const std::string expected = output();
  EXPECT_EQ(std::count(expected.begin(), expected.end(), '\n'), 23);
  for (const Limits& limits : {Limits{.sequences = 1}, Limits{.step_tokens = 3, .sequences = 2},
                               Limits{.step_tokens = 512, .sequences = 64}}) {
    ASSERT_TRUE(run(limits, 100'000));
    EXPECT_EQ(output(), expected);
  }
  EngineStats stats;
  ASSERT_TRUE(run({.blocks = 9, .sequences = 8}, 100'000, &stats));
  EXPECT_GT(stats.preemptions, 0);
  EXPECT_EQ(output(), expected);
}

// A batch block computes all its prompts in one step, then takes one step for each further token of
// its longest answer.
TEST_F(BatchJobTest, ABlockBeginsWithAllItsLines) {
  int longest = 0;
  for (int n = 0; n < 20; ++n)
    if (n % 5 != 4) longest = std::max(longest, 1 + n * 13 % 40);
  EngineStats stats;
  ASSERT_TRUE(run({.step_tokens = 512, .sequences = 64, .in_blocks = true}, 100'000, &stats));
  EXPECT_EQ(stats.steps, longest);
}

TEST_F(BatchJobTest, GoesOnWhereItWas) {
  ASSERT_TRUE(run({}, 100'000));
  const std::string expected = output();
  // The job takes at least `least_runs` runs, however far the engine gets between two of its steps:
  // with three requests outstanding, twenty requests take more steps than the first runs have.
  struct Case {
    int steps, least_runs;
  };
  for (const auto& [steps, least_runs] : {Case{1, 3}, Case{3, 2}}) {
    int runs = 1;
    size_t finished = 0;
    // A run with few steps finishes only short requests, so the runs become longer.
    while (!run({.sequences = 1}, steps + runs, nullptr)) {
      ++runs;
      const size_t now = BatchJournal(folder_ / "journal", false).size();
      EXPECT_GE(now, finished);
      finished = now;
    }
    EXPECT_GE(runs, least_runs);
    EXPECT_EQ(output(), expected) << "after " << runs << " runs";
  }
}

TEST_F(BatchJobTest, KnowsItsOutput) {
  ASSERT_TRUE(run({}, 100'000));
  const BatchInput input(input_);
  const auto is_complete = [&](const std::filesystem::path& path, const char* key) {
    const ResultLines lines(key, input);
    return FinishedOutput(path, lines, input).complete();
  };
  EXPECT_TRUE(is_complete(folder_ / "out", "k"));
  EXPECT_FALSE(is_complete(folder_ / "out", "l"));
  EXPECT_FALSE(is_complete(folder_.write("short", "{"), "k"));
  const std::string all = output();
  EXPECT_FALSE(is_complete(folder_.write("cut", all.substr(0, all.size() / 2)), "k"));
}

}  // namespace
}  // namespace spillway
