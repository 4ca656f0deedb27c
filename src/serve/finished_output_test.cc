// SPDX-License-Identifier: Apache-2.0
#include "serve/finished_output.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "serve/test_folder.h"

namespace spillway {
namespace {

using nlohmann::ordered_json;

constexpr size_t kResults = 4;

// Has an input whose requests are lines 1, 2, 4 and 5, and the output that a job would write.
class FinishedOutputTest : public testing::Test {
 protected:
  std::string result(const ResultLines& lines, uint64_t line) const {
    if (line == 2) return lines.write(line, nullptr, nullptr, {{"code", "x"}, {"line", line}});
    const std::string text(line * 5, 'x');
    const ordered_json body = {
        {"created", 77}, {"text", text}, {"system_fingerprint", fmt::format("fp_{}", line)}};
    return lines.write(line, fmt::format("r{}", line),
                       {{"status_code", 200}, {"request_id", lines.id(line)}, {"body", body}},
                       nullptr);
  }
  std::string output(const ResultLines& lines) const {
    std::string text;
    for (size_t i = 0; i < input_.size(); ++i) text += result(lines, input_.line_number(i)) + "\n";
    return text;
  }
  FinishedOutput read(const std::string& text) const {
    return FinishedOutput(folder_.write("out", text), lines_, input_);
  }
  // The usable results of `text`, completed by what it lacks, must be the whole output.
  size_t expect_mends(const std::string& text) const {
    const FinishedOutput found = read(text);
    EXPECT_FALSE(found.complete());
    EXPECT_TRUE(found.of_job());
    {
      BatchJournal journal(folder_ / "j", true);
      journal.begin({{"input", "abc"}}, 77);
      found.copy_to(journal);
      EXPECT_EQ(journal.size(), found.sound());
      for (size_t i = 0; i < input_.size(); ++i) {
        const uint64_t line = input_.line_number(i);
        if (!journal.has(line)) journal.append(line, line == 2, result(lines_, line));
      }
      EXPECT_EQ(journal.failed(), 1U);
      journal.write_output(folder_ / "mended");
    }
    EXPECT_EQ(folder_.read("mended"), whole_);
    return found.sound();
  }

  TestFolder folder_;
  BatchInput input_{folder_.write("in", "{}\n{}\n\n{}\n{}\n")};
  ResultLines lines_{"key", input_};
  std::string whole_ = output(lines_);
};

TEST_F(FinishedOutputTest, KnowsAWholeOutput) {
  ASSERT_EQ(input_.size(), kResults);
  const FinishedOutput found = read(whole_);
  EXPECT_TRUE(found.complete() && found.of_job());
  EXPECT_EQ(found.sound(), kResults);
  EXPECT_EQ(found.try_created(), 77);
  EXPECT_EQ(found.try_fingerprint(), "fp_1");
  for (const auto& line : {1, 2, 4, 5}) {
    const std::string text = result(lines_, static_cast<uint64_t>(line));
    EXPECT_EQ(lines_.try_read(text), line);
    EXPECT_EQ(ResultLines::is_failed(text), line == 2);
    EXPECT_TRUE(nlohmann::json::accept(text));
  }
}

TEST_F(FinishedOutputTest, TakesWhatACutAtAnyByteLeaves) {
  for (size_t bytes = 0; bytes < whole_.size(); ++bytes) {
    const std::string text = whole_.substr(0, bytes);
    const auto newlines = std::count(text.begin(), text.end(), '\n');
    // A last line may be complete without its newline.
    const bool one_more = whole_[bytes] == '\n';
    ASSERT_EQ(expect_mends(text), static_cast<size_t>(newlines) + (one_more ? 1 : 0)) << bytes;
  }
}

TEST_F(FinishedOutputTest, NeverTakesAChangedByteForAResult) {
  for (size_t byte = 0; byte < whole_.size(); ++byte) {
    std::string text = whole_;
    text[byte] = static_cast<char>(text[byte] ^ (byte % 2 == 0 ? 1 : 0x20));
    const bool newline = whole_[byte] == '\n';
    ASSERT_EQ(expect_mends(text), kResults - (newline && byte + 1 < whole_.size() ? 2 : 1)) << byte;
  }
}

TEST_F(FinishedOutputTest, MendsLinesThatAreMissingMovedDoubledOrForeign) {
  std::vector<std::string> lines;
  for (const uint64_t line : {1, 2, 4, 5}) lines.push_back(result(lines_, line) + "\n");
  EXPECT_EQ(expect_mends(lines[0] + lines[2] + lines[3]), 3U);
  EXPECT_EQ(expect_mends(lines[3]), 1U);
  EXPECT_EQ(expect_mends(lines[1] + lines[0] + lines[2] + lines[3]), 4U);
  EXPECT_EQ(expect_mends(whole_ + lines[2]), 4U);
  EXPECT_EQ(expect_mends("note\n" + whole_), 4U);
  EXPECT_EQ(expect_mends(whole_ + "\n"), 4U);
}

TEST_F(FinishedOutputTest, LeavesOtherFilesAlone) {
  const ResultLines other("other key", input_);
  const FinishedOutput of_other = read(output(other));
  EXPECT_FALSE(of_other.of_job() || of_other.complete());
  EXPECT_EQ(of_other.sound(), 0U);
  EXPECT_EQ(of_other.try_fingerprint(), "fp_1");
  for (const std::string text :
       {"precious\n", "\n", "{\n", "{}\n", "{\"id\":\"batch_req_0123\"}\n", "[1]"}) {
    const FinishedOutput found = read(text);
    EXPECT_FALSE(found.of_job() || found.complete()) << text;
    EXPECT_FALSE(found.try_fingerprint() || found.try_created()) << text;
  }
}

}  // namespace
}  // namespace spillway
