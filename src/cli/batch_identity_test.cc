// SPDX-License-Identifier: Apache-2.0
#include "cli/batch_identity.h"

#include <gtest/gtest.h>

#include <functional>
#include <set>
#include <string>
#include <vector>

namespace spillway {
namespace {

const std::vector<std::function<void(BatchIdentity&)>> kChanges = {
    [](auto& job) { job.input = "x"; },
    [](auto& job) { job.model = "x"; },
    [](auto& job) { job.context = 5; },
    [](auto& job) { job.chat_template = "chatml"; },
    [](auto& job) { job.strict_fields = true; },
    [](auto& job) { job.settings.program = "x"; },
    [](auto& job) { job.settings.device = "x"; },
    [](auto& job) { job.settings.deterministic = true; },
    [](auto& job) { job.settings.tuning = "x"; },
    [](auto& job) { job.settings.weight_types = "x"; },
    [](auto& job) { job.settings.kv_type = KvType::kInt8; },
    [](auto& job) { job.settings.attention_topk = 0.1F; },
    [](auto& job) { job.settings.host_attention = "x"; },
    [](auto& job) { job.settings.host_linear = "x"; }};

TEST(BatchIdentityTest, EveryMemberIsAFieldOfItsOwn) {
  const JobFields before = BatchIdentity().fields();
  ASSERT_EQ(before.size(), kChanges.size());
  std::set<std::string> names, keys = {job_key(before)};
  for (size_t i = 0; i < kChanges.size(); ++i) {
    BatchIdentity job;
    kChanges[i](job);
    const JobFields after = job.fields();
    for (size_t j = 0; j < after.size(); ++j) EXPECT_EQ(after[j] != before[j], i == j);
    names.insert(after[i].first);
    keys.insert(job_key(after));
  }
  EXPECT_EQ(names.size(), kChanges.size());
  EXPECT_EQ(keys.size(), kChanges.size() + 1);
}

TEST(BatchIdentityTest, AnAnswersFingerprintDoesNotDependOnTheInput) {
  BatchIdentity job;
  const std::string before = system_fingerprint(job.without_input());
  job.input = "x";
  EXPECT_EQ(system_fingerprint(job.without_input()), before);
  job.settings.attention_topk = 0.1F;
  EXPECT_NE(system_fingerprint(job.without_input()), before);
}

}  // namespace
}  // namespace spillway
