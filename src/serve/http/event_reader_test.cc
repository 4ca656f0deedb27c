// SPDX-License-Identifier: Apache-2.0
#include "serve/http/event_reader.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "base/error.h"

namespace spillway {
namespace {

using Events = std::vector<std::string>;

Events read_in_pieces(std::string_view text, size_t piece) {
  EventReader reader(100);
  Events events;
  for (size_t at = 0; at < text.size(); at += piece)
    reader.feed(text.substr(at, piece), [&](std::string_view data) {
      events.emplace_back(data);
      return true;
    });
  return events;
}

void expect(std::string_view text, const Events& events) {
  for (size_t piece = 1; piece <= std::max<size_t>(1, text.size()); ++piece)
    EXPECT_EQ(read_in_pieces(text, piece), events) << text << " in pieces of " << piece;
}

TEST(EventReaderTest, ReadsEventsInAnyPieces) {
  expect("", {});
  expect("data: a\n\ndata: {\"b\": \"\xC3\xA9\"}\n\n", {"a", "{\"b\": \"\xC3\xA9\"}"});
  expect("data:a\n\ndata:  b \n\n", {"a", " b "});
}

TEST(EventReaderTest, TakesEveryLineEnd) {
  expect("data: a\r\n\r\ndata: b\r\n\r\n", {"a", "b"});
  expect("data: a\r\rdata: b\r\r", {"a", "b"});
  expect("data: a\r\n\ndata: b\n\r\n", {"a", "b"});
}

TEST(EventReaderTest, JoinsLinesAndLeavesOutWhatIsNoData) {
  expect("data: a\ndata: b\ndata\n\n", {"a\nb\n"});
  expect(": ping\n\nevent: x\nid: 7\ndata: a\nretry: 5\n\n: ping\n\n", {"a"});
  expect("database: x\n\ndata\n\n", {""});
  expect(
      "\xEF\xBB\xBF"
      "data: a\n\n",
      {"a"});
}

TEST(EventReaderTest, AnEventThatIsNotEndedIsNone) {
  expect("data: a\n\ndata: b\n", {"a"});
  expect("data: a", {});
}

TEST(EventReaderTest, StopsWhereItIsTold) {
  EventReader reader(100);
  int events = 0;
  reader.feed("data: a\n\ndata: b\n\n", [&](std::string_view) { return ++events < 1; });
  EXPECT_EQ(events, 1);
}

TEST(EventReaderTest, NothingEndlessIsKept) {
  const auto ignore = [](std::string_view) { return true; };
  EventReader line(100), data(100), comment(100);
  EXPECT_THROW(line.feed("data: " + std::string(95, 'x'), ignore), Error);
  EXPECT_THROW(comment.feed(":" + std::string(100, 'x'), ignore), Error);
  EXPECT_THROW(
      {
        for (int i = 0; i < 50; ++i) data.feed("data: xxxx\n", ignore);
      },
      Error);
}

}  // namespace
}  // namespace spillway
