// SPDX-License-Identifier: Apache-2.0
#include "cli/scheduling_flags.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "cli/command_line.h"

namespace spillway {
namespace {

// A program with a command that has these flags, and another one that does not.
class SchedulingFlagsTest : public testing::Test {
 protected:
  SchedulingFlagsTest() {
    Command* const serve = app_.add_subcommand("serve");
    serve->add_option("MODEL", model_)->required();
    serve->add_option("--port", port_);
    add_scheduling_flags(*serve, flags_, "fair");
    app_.add_subcommand("run")->add_option("-p", prompt_);
  }
  void parse(std::vector<std::string> words) {
    words = with_usual_pace(app_, std::move(words));
    app_.run(std::move(words));
  }
  void expect(double pace_s, std::vector<std::string> words) {
    SCOPED_TRACE(testing::PrintToString(words));
    flags_.token_pace_s = 0;
    model_.clear();
    ASSERT_NO_THROW(parse(std::move(words)));
    EXPECT_EQ(flags_.options().token_pace_s, pace_s);
    EXPECT_EQ(model_, "model.gguf");
  }

  CommandLine app_{"", "spillway"};
  SchedulingFlags flags_;
  std::string model_, prompt_;
  int port_ = 0;
};

TEST_F(SchedulingFlagsTest, APaceWithoutANumberIsTheSpeedOfReading) {
  expect(0, {"serve", "model.gguf"});
  expect(0.1875, {"serve", "model.gguf", "--token-pace"});
  expect(0.1875, {"serve", "--token-pace", "model.gguf"});
  expect(0.1875, {"serve", "--token-pace", "model.gguf", "--port", "0"});
  expect(0.1875, {"serve", "--token-pace", "--port", "0", "model.gguf"});
  expect(0.1875, {"serve", "--token-pace", "--", "model.gguf"});
}

TEST_F(SchedulingFlagsTest, APaceWithANumberIsThatOne) {
  expect(0.25, {"serve", "model.gguf", "--token-pace", "0.25"});
  expect(0.25, {"serve", "--token-pace", "0.25", "model.gguf"});
  expect(2, {"serve", "--token-pace=2", "model.gguf"});
  for (const char* wrong : {"-1", "0", "1e9"})
    EXPECT_THROW(parse({"serve", "model.gguf", "--token-pace", wrong}), UsageError) << wrong;
  EXPECT_THROW(parse({"serve", "model.gguf", "--token-pace", "fast"}), UsageError);
}

TEST_F(SchedulingFlagsTest, OtherCommandsKeepTheirWords) {
  const std::vector<std::string> words = {"run", "-p", "--token-pace"};
  EXPECT_EQ(with_usual_pace(app_, words), words);
}

}  // namespace
}  // namespace spillway
