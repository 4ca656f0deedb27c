// SPDX-License-Identifier: Apache-2.0
#include "cli/scheduling_flags.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "cli/command_line.h"

namespace spillway {
namespace {

// Builds a program with one command that has these flags.
class SchedulingFlagsTest : public testing::Test {
 protected:
  SchedulingFlagsTest() {
    Command* const serve = app_.add_subcommand("serve");
    serve->add_option("MODEL", model_)->required();
    add_scheduling_flags(*serve, flags_, "fair");
  }
  SchedulingOptions parse(std::vector<std::string> words) {
    words.insert(words.begin(), {"serve", "model.gguf"});
    app_.run(std::move(words));
    return flags_.options();
  }

  CommandLine app_{"", "spillway"};
  SchedulingFlags flags_;
  std::string model_;
};

TEST_F(SchedulingFlagsTest, PredictionsDecideUnlessThereAreNone) {
  EXPECT_EQ(parse({}).order, OrderKind::kFair);
  EXPECT_TRUE(flags_.options().packs_predicted);
  EXPECT_FALSE(flags_.admits_whole());
  EXPECT_FALSE(parse({"--length-predictor", "off"}).packs_predicted);
  EXPECT_TRUE(flags_.admits_whole());
}

TEST_F(SchedulingFlagsTest, AnOrderByLengthNeedsAPredictor) {
  EXPECT_EQ(parse({"--queue-order", "shortest"}).order, OrderKind::kShortest);
  EXPECT_THROW(parse({"--queue-order", "shortest", "--length-predictor", "off"}), Error);
}

TEST_F(SchedulingFlagsTest, OrdersThatThereAreNotAreRefused) {
  EXPECT_THROW(parse({"--queue-order", "longest"}), UsageError);
}

}  // namespace
}  // namespace spillway
