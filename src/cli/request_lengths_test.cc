// SPDX-License-Identifier: Apache-2.0
#include "cli/request_lengths.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <utility>

#include "base/error.h"
#include "storage/test_folder.h"

namespace spillway {
namespace {

using Pairs = std::vector<std::pair<int, int>>;

class RequestLengthsTest : public testing::Test {
 protected:
  Pairs read(const std::string& text, size_t most = 0) {
    const auto path = folder_.path() / "lengths";
    std::ofstream(path, std::ios::binary) << text;
    Pairs pairs;
    for (const RequestLengths& r : read_request_lengths(path, most))
      pairs.emplace_back(r.prompt, r.answer);
    return pairs;
  }
  std::string error(const std::string& text) {
    try {
      read(text);
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::kInvalidArgument);
      return e.what();
    }
    return "none";
  }
  TempFolder folder_;
};

TEST_F(RequestLengthsTest, ReadsPairsHoweverTheyAreSetApart) {
  EXPECT_EQ(read("512 32\n7\t1\r\n\n  3,4  \n9 , 10"), (Pairs{{512, 32}, {7, 1}, {3, 4}, {9, 10}}));
}

TEST_F(RequestLengthsTest, FindsTheColumnsOfATrace) {
  EXPECT_EQ(read("TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:15:46.68,374,44\r\n"
                 "2023-11-16 18:15:50.99,396,109\r\n"),
            (Pairs{{374, 44}, {396, 109}}));
  EXPECT_EQ(read("answer prompt\n1 2\n"), (Pairs{{2, 1}}));
}

TEST_F(RequestLengthsTest, LooksAtNoMoreThanAskedFor) {
  EXPECT_EQ(read("1 2\n3 4\nnonsense\n", 2), (Pairs{{1, 2}, {3, 4}}));
}

TEST_F(RequestLengthsTest, NamesTheLineThatIsNoRequest) {
  for (const char* bad : {"5", "5 6 7", "0 4", "4 0", "-1 4", "4 5x", "1e3 4", "99999999 1", ",",
                          "4,", "prompt answer"}) {
    EXPECT_THAT(error(std::string("1 2\n\n") + bad + "\n"), testing::HasSubstr("line 3 is"));
  }
  EXPECT_THAT(error("TIMESTAMP,ContextTokens\n1,2\n"), testing::HasSubstr("line 1 is"));
  EXPECT_THAT(error(""), testing::HasSubstr("no requests"));
  EXPECT_THAT(error("prompt answer\n"), testing::HasSubstr("no requests"));
  EXPECT_THROW(read_request_lengths(folder_.path() / "absent", 0), Error);
  EXPECT_THROW(read_request_lengths(folder_.path(), 0), Error);
}

TEST_F(RequestLengthsTest, AWorkloadKeepsTheirOrder) {
  const std::vector<RequestLengths> requests = {{10, 1}, {10, 1}, {2, 8}, {10, 1}};
  const Workload workload = workload_of(requests);
  ASSERT_EQ(workload.groups.size(), 3U);
  EXPECT_EQ(workload.groups[0].count, 2);
  EXPECT_EQ(workload.groups[1].generate, 8);
  EXPECT_EQ(workload.groups[2].prompt, 10);
  EXPECT_EQ(workload.requests(), 4);
}

TEST_F(RequestLengthsTest, PadsEveryRequestToTheLongestOfItsBlock) {
  const std::vector<RequestLengths> requests = {{10, 1}, {2, 8}, {4, 3}, {6, 2}, {5, 5}};
  EXPECT_EQ(count_tokens(requests).prompt, 27);
  EXPECT_EQ(count_tokens(requests).answer, 19);
  const TokenCounts pairs = count_padded_tokens(requests, 2);
  EXPECT_EQ(pairs.prompt, 2 * 10 + 2 * 6 + 5);
  EXPECT_EQ(pairs.answer, 2 * 8 + 2 * 3 + 5);
  EXPECT_EQ(count_padded_tokens(requests, 100).answer, 5 * 8);
  EXPECT_EQ(count_padded_tokens(requests, 1).answer, 19);
}

}  // namespace
}  // namespace spillway
