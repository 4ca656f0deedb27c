// SPDX-License-Identifier: Apache-2.0
#include "serve/line_reader.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <vector>

#include "serve/test_folder.h"

namespace spillway {
namespace {

struct Seen {
  uint64_t offset;
  uint64_t bytes;
  std::string text;
  bool too_long;
  bool complete;
  bool operator==(const Seen&) const = default;
};

std::vector<Seen> read_lines(const std::string& text, size_t max_line_bytes) {
  const TestFolder folder;
  const PosixFile file(folder.write("lines", text), O_RDONLY);
  LineReader reader(file, max_line_bytes);
  std::vector<Seen> seen;
  FileLine line;
  while (reader.next(line))
    seen.push_back({line.offset, line.bytes, std::string(line.text), line.too_long, line.complete});
  return seen;
}

TEST(LineReaderTest, KnowsWhereLinesAreAndWhetherTheLastOneIsWhole) {
  EXPECT_EQ(read_lines("", 10), std::vector<Seen>{});
  EXPECT_EQ(read_lines("ab\n\ncd", 10),
            (std::vector<Seen>{
                {0, 2, "ab", false, true}, {3, 0, "", false, true}, {4, 2, "cd", false, false}}));
  EXPECT_EQ(read_lines("ab\n", 10), (std::vector<Seen>{{0, 2, "ab", false, true}}));
}

TEST(LineReaderTest, PassesOverLinesThatAreTooLong) {
  // These lines are longer than one read, so several reads are dropped.
  const std::string large(3'000'000, 'x');
  EXPECT_EQ(read_lines("a\n" + large + "\nbc\n" + large, 1000),
            (std::vector<Seen>{{0, 1, "a", false, true},
                               {2, 3'000'000, "", true, true},
                               {3'000'003, 2, "bc", false, true},
                               {3'000'006, 3'000'000, "", true, false}}));
  EXPECT_EQ(read_lines("abcd\nabcde\n", 4),
            (std::vector<Seen>{{0, 4, "abcd", false, true}, {5, 5, "", true, true}}));
}

TEST(LineReaderTest, KeepsLinesThatSpanPieces) {
  const std::string large(1'000'000, 'y');
  const auto lines = read_lines("a\n" + large + "\n" + large + "z\n", 2'000'000);
  ASSERT_EQ(lines.size(), 3U);
  EXPECT_EQ(lines[1].text, large);
  EXPECT_EQ(lines[2].text, large + "z");
}

}  // namespace
}  // namespace spillway
