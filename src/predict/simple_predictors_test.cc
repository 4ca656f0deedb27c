// SPDX-License-Identifier: Apache-2.0
#include "predict/simple_predictors.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/test_scoped_folder.h"

namespace spillway {
namespace {

TEST(RunningMeanPredictorTest, SaysWhatWasMostFrequent) {
  RunningMeanPredictor predictor(LengthBuckets::linear(100));
  for (int i = 0; i < 30; ++i) predictor.learn({.text = "any"}, 45);
  for (int i = 0; i < 10; ++i) predictor.learn({.text = "any"}, 95);
  const LengthDistribution said = predictor.predict({.text = "other"});
  EXPECT_EQ(said.likeliest(), 4U);
  EXPECT_NEAR(said.share(4), 0.75, 0.02);
  EXPECT_EQ(predictor.predict({.text = "other", .most_tokens = 7}).quantile(0.9), 7);
}

TEST(OraclePredictorTest, KnowsEachAnswerToTheToken) {
  OraclePredictor oracle;
  const std::vector<TokenId> ids = {1, 2, 3};
  oracle.learn({.text = "short"}, 1);
  oracle.learn({.text = "long"}, 777);
  oracle.learn({.tokens = ids}, 20);
  for (const double probability : {0.1, 0.5, 1.0}) {
    EXPECT_EQ(oracle.predict({.text = "short"}).quantile(probability), 1);
    EXPECT_EQ(oracle.predict({.text = "long"}).quantile(probability), 777);
    EXPECT_EQ(oracle.predict({.tokens = ids}).quantile(probability), 20);
  }
  EXPECT_NE(error_of([&] { (void)oracle.predict({.text = "never heard"}); }), "no error");
}

}  // namespace
}  // namespace spillway
