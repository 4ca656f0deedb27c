// SPDX-License-Identifier: Apache-2.0
#include "storage/temporary_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "base/error.h"
#include "storage/direct_reader.h"
#include "storage/temp_folder.h"

namespace spillway {
namespace {

TEST(TemporaryFileTest, IsReadBackAndLeavesNothing) {
  const TempFolder folder;
  std::vector<std::byte> data(300'000);
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<std::byte>(i * 7 / 3);
  {
    TemporaryFile file(folder.path(), data.size());
    EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
    file.write(0, data.data(), 100);
    file.write(100, data.data() + 100, data.size() - 100);
    file.flush();
    const DirectReader reader(std::vector{file.path()});
    const size_t bytes = DirectReader::buffer_bytes(data.size());
    auto* const memory = static_cast<std::byte*>(std::aligned_alloc(kDirectAlignment, bytes));
    const auto read = reader.read({.file = 0, .offset = 33, .bytes = 250'000}, {memory, bytes});
    EXPECT_EQ(std::memcmp(read.data(), data.data() + 33, 250'000), 0);
    std::free(memory);
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(TemporaryFileTest, RefusesWhatTheDiskDoesNotHave) {
  const TempFolder folder;
  try {
    const TemporaryFile file(folder.path(), uint64_t{1} << 60);
    FAIL() << "an exabyte";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kIo);
    EXPECT_THAT(error.what(), testing::HasSubstr("--disk-dir"));
  }
  EXPECT_THROW(TemporaryFile("/nowhere/at/all", 1), Error);
}

}  // namespace
}  // namespace spillway
