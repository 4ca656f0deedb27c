// SPDX-License-Identifier: Apache-2.0
#include "serve/api/operator_metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

namespace spillway {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST(OperatorMetricsTest, AnswersAreCountedByRouteAndStatus) {
  OperatorMetrics metrics;
  metrics.answered("/v1/completions", 200);
  metrics.answered("/v1/completions", 200);
  metrics.answered("/v1/completions", 401);
  metrics.answered("", 404);
  const std::string text = metrics.text({});
  EXPECT_THAT(text,
              HasSubstr(R"(spillway_http_requests_total{route="/v1/completions",status="200"} 2)"));
  EXPECT_THAT(text,
              HasSubstr(R"(spillway_http_requests_total{route="/v1/completions",status="401"} 1)"));
  EXPECT_THAT(text, HasSubstr(R"(spillway_http_requests_total{route="other",status="404"} 1)"));
}

TEST(OperatorMetricsTest, TheProcessAndConnectionsAreThoseOfNow) {
  OperatorMetrics metrics;
  metrics.limit("connections", 1024);
  OperatorMetrics::Now now;
  now.http.connections = 7;
  now.http.open_connections = 3;
  now.unread_requests = 5;
  for (int looks = 0; looks < 2; ++looks) {
    const std::string text = metrics.text(now);
    EXPECT_THAT(text, HasSubstr("spillway_http_connections_total 7\n"));
    EXPECT_THAT(text, HasSubstr("spillway_http_connections_open 3\n"));
    EXPECT_THAT(text, HasSubstr("spillway_readers_backlog 5\n"));
    EXPECT_THAT(text, HasSubstr("spillway_limit{of=\"connections\"} 1024\n"));
    for (const char* const name :
         {"process_resident_memory_bytes", "process_cpu_seconds_total", "process_open_fds",
          "process_max_fds", "process_start_time_seconds"}) {
      EXPECT_THAT(text, HasSubstr(std::string("\n") + name + " "));
      EXPECT_THAT(text, Not(HasSubstr(std::string("\n") + name + " 0\n")));
    }
  }
}

TEST(OperatorMetricsTest, LoadIsCountedByKeyWhileRequestsAreOpen) {
  auto metrics = std::make_unique<OperatorMetrics>();
  auto first = metrics->begin("ab12");
  const auto second = metrics->begin("ab12");
  metrics->ended("ab12", 10, 3);
  EXPECT_THAT(metrics->text({}), HasSubstr("spillway_key_requests_open{key=\"ab12\"} 2\n"));
  first.reset();
  const std::string text = metrics->text({});
  EXPECT_THAT(text, HasSubstr("spillway_key_requests_open{key=\"ab12\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("spillway_key_requests_total{key=\"ab12\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("spillway_key_prompt_tokens_total{key=\"ab12\"} 10\n"));
  EXPECT_THAT(text, HasSubstr("spillway_key_generated_tokens_total{key=\"ab12\"} 3\n"));
  metrics.reset();  // while the second request is still open
}

TEST(OperatorMetricsTest, ManyKeysAreCountedTogether) {
  OperatorMetrics metrics;
  for (int key = 0; key < 300; ++key) (void)metrics.begin("k" + std::to_string(key));
  const std::string text = metrics.text({});
  EXPECT_THAT(text, HasSubstr("spillway_key_requests_total{key=\"k255\"} 1\n"));
  EXPECT_THAT(text, Not(HasSubstr("k256")));
  EXPECT_THAT(text, HasSubstr("spillway_key_requests_total{key=\"other\"} 44\n"));
}

}  // namespace
}  // namespace spillway
