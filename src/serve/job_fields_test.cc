// SPDX-License-Identifier: Apache-2.0
#include "serve/job_fields.h"

#include <gtest/gtest.h>

namespace spillway {
namespace {

using Names = std::vector<std::string>;

const JobFields kSettings = {{"model", "m"}, {"--kv-type", "f16"}, {"--attention-topk", "0"}};

TEST(JobFieldsTest, EveryChangeOfAFieldIsAnotherKey) {
  const std::string key = job_key(kSettings);
  EXPECT_EQ(job_key(kSettings), key);
  for (size_t i = 0; i < kSettings.size(); ++i) {
    JobFields other = kSettings;
    other[i].second += "1";
    EXPECT_NE(job_key(other), key);
    other = kSettings;
    other[i].first += "1";
    EXPECT_NE(job_key(other), key);
    other = kSettings;
    other.erase(other.begin() + static_cast<std::ptrdiff_t>(i));
    EXPECT_NE(job_key(other), key);
  }
  EXPECT_NE(job_key({{"a", "b\n1:c=1:d"}}), job_key({{"a", "b"}, {"c", "d"}}));
}

TEST(JobFieldsTest, AFingerprintTellsWhichSettingsDiffer) {
  const std::string fingerprint = system_fingerprint(kSettings);
  EXPECT_EQ(fingerprint.substr(0, 3), "fp_");
  EXPECT_EQ(differing_settings(fingerprint, kSettings), Names{});
  JobFields other = kSettings;
  other[2].second = "0.5";
  EXPECT_NE(system_fingerprint(other), fingerprint);
  EXPECT_EQ(differing_settings(fingerprint, other), Names{"--attention-topk"});
  other[0].second += "n";
  EXPECT_EQ(differing_settings(fingerprint, other), (Names{"model", "--attention-topk"}));
}

TEST(JobFieldsTest, AFingerprintOfSomethingElseTellsNothing) {
  for (const std::string other : {"", "fp_", "fp_fc9f1d7035", "xx_0123456789ab"})
    EXPECT_EQ(differing_settings(other, kSettings), Names{}) << other;
}

}  // namespace
}  // namespace spillway
