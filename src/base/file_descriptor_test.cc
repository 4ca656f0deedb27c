// SPDX-License-Identifier: Apache-2.0
#include "base/file_descriptor.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <type_traits>

namespace spillway {
namespace {

static_assert(!std::is_copy_constructible_v<FileDescriptor> &&
              !std::is_copy_assignable_v<FileDescriptor>);
static_assert(std::is_nothrow_move_constructible_v<FileDescriptor> &&
              std::is_nothrow_move_assignable_v<FileDescriptor>);

FileDescriptor open_null() { return FileDescriptor(::open("/dev/null", O_RDONLY | O_CLOEXEC)); }
bool is_open(int fd) { return ::fcntl(fd, F_GETFD) >= 0; }

TEST(FileDescriptorTest, ClosesWithItsOwner) {
  int fd = -1;
  {
    const FileDescriptor file = open_null();
    ASSERT_TRUE(file.is_open());
    fd = file.get();
    EXPECT_TRUE(is_open(fd));
  }
  EXPECT_FALSE(is_open(fd));
}

TEST(FileDescriptorTest, MovingLeavesOneOwner) {
  FileDescriptor first = open_null();
  const int fd = first.get();
  FileDescriptor second = std::move(first);
  EXPECT_FALSE(first.is_open());  // NOLINT(bugprone-use-after-move): that is the point
  EXPECT_EQ(second.get(), fd);
  FileDescriptor third = open_null();
  const int replaced = third.get();
  third = std::move(second);
  EXPECT_FALSE(is_open(replaced));
  EXPECT_EQ(third.get(), fd);
  FileDescriptor& same = third;
  third = std::move(same);
  EXPECT_TRUE(is_open(fd));
}

TEST(FileDescriptorTest, IsClosedOnceOnly) {
  FileDescriptor file = open_null();
  const int fd = file.get();
  file.close();
  EXPECT_FALSE(file.is_open() || is_open(fd));
  const FileDescriptor next = open_null();  // the system gives it the same number
  file.close();
  EXPECT_TRUE(is_open(next.get()));
}

TEST(FileDescriptorTest, KeepsWhyThereIsNone) {
  EXPECT_EQ(FileDescriptor(-ENOENT).get(), -ENOENT);
  EXPECT_FALSE(FileDescriptor(-ENOENT).is_open());
  EXPECT_LT(FileDescriptor().get(), 0);
}

}  // namespace
}  // namespace spillway
