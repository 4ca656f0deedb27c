// SPDX-License-Identifier: Apache-2.0
#include "serve/request_memory.h"

#include <gtest/gtest.h>

#include <optional>
#include <thread>

#include "serve/api_error.h"

namespace spillway {
namespace {

template <class Call>
int status_of(const Call& call) {
  try {
    const auto reserved = call();
    return 200;
  } catch (const ApiError& error) {
    return error.status();
  }
}

TEST(RequestMemoryTest, RefusesForNowOrForGood) {
  RequestMemory memory(100);
  auto half = std::optional(memory.reserve(60));
  EXPECT_EQ(status_of([&] { return memory.reserve(41); }), 503);
  EXPECT_EQ(status_of([&] { return memory.reserve(101); }), 413);
  EXPECT_EQ(status_of([&] { return memory.wait(101); }), 413);
  EXPECT_EQ(status_of([&] { return memory.reserve(40); }), 200);
  RequestMemory::Reservation moved = std::move(*half);
  half.reset();
  EXPECT_EQ(status_of([&] { return memory.reserve(41); }), 503) << "it has gone elsewhere";
  moved = {};
  EXPECT_EQ(status_of([&] { return memory.reserve(100); }), 200);
}

TEST(RequestMemoryTest, WaitsForThoseThatAreAboutToEnd) {
  RequestMemory memory(100);
  auto first = std::optional(memory.wait(80));
  std::thread other([&] { EXPECT_EQ(status_of([&] { return memory.wait(50); }), 200); });
  EXPECT_EQ(status_of([&] { return memory.wait(20); }), 200) << "it delays no request";
  first.reset();
  other.join();
  EXPECT_EQ(status_of([&] { return memory.reserve(100); }), 200);
}

}  // namespace
}  // namespace spillway
