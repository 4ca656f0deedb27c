// SPDX-License-Identifier: Apache-2.0
#include "cli/progress_line.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "text/utf8.h"

namespace spillway {
namespace {

using ::testing::HasSubstr;

TEST(ProgressLineTest, HasTitleBarPercentageAndDetailWhereThereIsRoom) {
  EXPECT_EQ(progress_line("bench", 0.5, "run 1 of 2", 200),
            "bench [###############...............]  50% run 1 of 2");
  EXPECT_EQ(progress_line("bench", 1, "", 200), "bench [##############################] 100%");
}

TEST(ProgressLineTest, FitsEveryWidth) {
  for (const std::string title :
       {"x", "loading model.gguf", "loading /a/very/long/path/to/some/folder/model-Q4_K_M.gguf",
        "loading 模型/文件夹/很长的模型名称-第一版本.gguf",
        "loading e\u0301e\u0301e\u0301e\u0301e\u0301",
        "loading \U0001F600\U0001F600\U0001F600\U0001F600\U0001F600\U0001F600\U0001F600", ""}) {
    for (const std::string detail : {"", "1.25 GiB of 4.00 GiB"}) {
      for (int columns = 0; columns <= 140; ++columns) {
        const std::string line = progress_line(title, 0.423, detail, columns);
        EXPECT_LT(display_width(line), std::max(columns, 1)) << columns << ": " << line;
        EXPECT_TRUE(is_valid_utf8(line)) << columns << ": " << line;
        if (columns > 4) {
          EXPECT_THAT(line, HasSubstr("42%")) << columns;
        }
        if (columns > 30) {
          EXPECT_THAT(line, HasSubstr(detail)) << columns;
        }
      }
    }
  }
}

TEST(ProgressLineTest, ALongTitleLosesItsMiddle) {
  const std::string line =
      progress_line("loading /models/some/folder/llama-7b-Q4_0.gguf", 0, "1 of 4 GiB", 60);
  EXPECT_THAT(line, HasSubstr("loading"));
  EXPECT_THAT(line, HasSubstr("..."));
  EXPECT_THAT(line, HasSubstr("gguf ["));
}

TEST(ProgressLineTest, WideCharactersTakeTwoColumnsAndMarksNone) {
  EXPECT_EQ(display_width("model"), 5);
  EXPECT_EQ(display_width("模型"), 4);
  EXPECT_EQ(display_width("é"), 1);
  EXPECT_EQ(display_width("e\u0301"), 1);
  EXPECT_EQ(display_width("\U0001F600"), 2);
}

TEST(ProgressLineTest, CutsBetweenCharactersOnly) {
  EXPECT_EQ(fit_columns("abcdefghij", 10), "abcdefghij");
  EXPECT_EQ(fit_columns("abcdefghij", 9), "abc...hij");
  EXPECT_EQ(fit_columns("模型文件名称", 9), "模...名称");
  EXPECT_EQ(fit_columns("模型文件名称", 8), "模...称");
  EXPECT_EQ(fit_columns("模型文件名称", 2), "..");
  EXPECT_EQ(fit_columns("模型", 0), "");
}

}  // namespace
}  // namespace spillway
