// SPDX-License-Identifier: Apache-2.0
#include "memory/block_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <map>
#include <optional>
#include <random>

#include "base/error.h"
#include "base/fault_points.h"
#include "base/test_scoped_folder.h"
#include "memory/block_folder_room.h"

namespace spillway {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

constexpr size_t kBytes = 5000;  // not a multiple of a disk block
constexpr uint64_t kPlenty = uint64_t{1} << 30;

using FileBytes = std::vector<char>;

FileBytes bytes_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}
void set_bytes(const fs::path& path, const FileBytes& bytes) {
  std::ofstream(path, std::ios::binary)
      .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

class BlockFolderTest : public testing::Test {
 protected:
  // Uses a file system in memory if possible, because thousands of files are written.
  BlockFolderTest()
      : folder_(fs::is_directory("/dev/shm") ? fs::path("/dev/shm") : fs::temp_directory_path()) {}
  ~BlockFolderTest() override { disarm_faults(); }

  std::unique_ptr<BlockFolder> open(uint64_t budget = kPlenty, const std::string& salt = "salt") {
    return BlockFolder::try_open(
        queue_, {.dir = dir(), .block_bytes = kBytes, .salt = salt, .budget_bytes = budget});
  }
  fs::path dir() const { return folder_ / "kv"; }
  // The folder that has the files, if there is only one.
  fs::path inner() const { return fs::directory_iterator(dir())->path(); }

  static FolderBlock block(uint64_t n) {
    return {.name = {n, n + 1}, .parent = {n - 1, n}, .position = static_cast<uint32_t>(16 * n)};
  }
  static void fill(uint64_t n, std::byte* bytes) {
    std::mt19937_64 random(n);
    for (size_t i = 0; i < kBytes; ++i) bytes[i] = static_cast<std::byte>(random());
  }

  // Writes as many of these blocks as there is room for.
  std::vector<bool> write(BlockFolder& folder, std::vector<uint64_t> which) {
    which.resize(std::min<size_t>(which.size(), folder.room()));
    AlignedBuffer memory(which.size() * folder.stride());
    std::vector<FolderWrite> writes;
    for (const uint64_t n : which) {
      std::byte* const bytes = memory.data() + writes.size() * folder.stride();
      fill(n, bytes);
      writes.push_back({block(n), bytes});
    }
    return folder.write(writes);
  }
  // Returns which of these blocks come; those that come must be as they were written.
  std::vector<bool> read(BlockFolder& folder, const std::vector<uint64_t>& which) {
    AlignedBuffer memory(which.size() * folder.stride());
    std::vector<FolderRead> reads;
    for (const uint64_t n : which)
      reads.push_back({block(n).name, memory.data() + reads.size() * folder.stride()});
    const std::vector<bool> good = folder.read(reads);
    std::vector<std::byte> right(kBytes);
    for (size_t i = 0; i < which.size(); ++i) {
      fill(which[i], right.data());
      if (good[i]) {
        EXPECT_EQ(std::memcmp(right.data(), reads[i].bytes, kBytes), 0) << "another block";
      }
    }
    return good;
  }
  static int64_t count(const std::vector<bool>& of) {
    return std::count(of.begin(), of.end(), true);
  }

  ScopedFolder folder_;
  IoQueue queue_;
};

const std::vector<uint64_t> kSix = {1, 2, 3, 4, 5, 6};

TEST_F(BlockFolderTest, BlocksAreThereWhenItIsOpenedAgain) {
  {
    auto folder = open();
    EXPECT_EQ(count(write(*folder, kSix)), 6);
    EXPECT_EQ(count(read(*folder, kSix)), 6);
    folder->drop(block(3).name);
  }
  auto folder = open();
  EXPECT_EQ(read(*folder, kSix), (std::vector<bool>{true, true, false, true, true, true}));
  ASSERT_EQ(folder->blocks().size(), 5U);
  EXPECT_EQ(folder->blocks()[0].name, block(1).name);
  EXPECT_EQ(folder->blocks()[1].parent, block(2).parent);
  EXPECT_EQ(folder->blocks()[4].position, block(6).position);
  EXPECT_EQ(folder->stats().damaged, 0U);
  struct stat status = {};
  ASSERT_EQ(::stat(inner().c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 077, 0U) << "others can read what people asked";
}

TEST_F(BlockFolderTest, UsesASlotThatWasLeftForTheNextBlock) {
  for (uint64_t round = 0; round < 50; ++round) {
    auto folder = open();
    for (uint64_t n = round * 10; n < round * 10 + 10; ++n) {
      EXPECT_EQ(count(write(*folder, {n + 1})), 1);
      if (n >= 5) folder->drop(block(n - 4).name);
    }
    EXPECT_EQ(folder->blocks().size(), 5U);
  }
  EXPECT_LE(fs::file_size(inner() / "blocks"), 7U * 8192);
  auto folder = open();
  EXPECT_EQ(count(read(*folder, {496, 497, 498, 499, 500})), 5);
}

TEST_F(BlockFolderTest, KeepsToItsBudget) {
  auto folder = open(10 * 8192 + 10 * 2 * kIndexEntryBytes);
  EXPECT_EQ(folder->room(), 10U);
  write(*folder, kSix);
  EXPECT_EQ(folder->room(), 4U);
}

// The caller chooses which blocks are evicted, whatever slots they are in.
TEST_F(BlockFolderTest, ShrinksByTheBlocksThatItIsTold) {
  write(*open(), kSix);
  auto folder = open(3 * (8192 + 2 * kIndexEntryBytes));
  EXPECT_EQ(folder->blocks().size(), 6U) << "nothing goes by itself";
  EXPECT_EQ(folder->excess(), 3U);
  EXPECT_EQ(folder->room(), 0U);
  const std::vector<BlockName> names = {block(1).name, block(2).name, block(6).name};
  folder->shrink(names);
  EXPECT_EQ(folder->excess(), 0U);
  EXPECT_EQ(fs::file_size(inner() / "blocks"), 5U * 8192) << "behind the last block it ends";
  EXPECT_LE(block_folders_bytes(dir()), 3U * 8192 + 2 * 4096) << "holes take nothing";
  folder.reset();
  folder = open(4 * (8192 + 2 * kIndexEntryBytes));
  EXPECT_EQ(read(*folder, kSix), (std::vector<bool>{false, false, true, true, true, false}));
  EXPECT_EQ(folder->stats().damaged, 0U);
  EXPECT_EQ(count(write(*folder, {7})), 1);
  EXPECT_EQ(fs::file_size(inner() / "blocks"), 5U * 8192) << "it went into a hole";
  EXPECT_EQ(count(read(*folder, {3, 4, 5, 7})), 4);
}

TEST_F(BlockFolderTest, GoesOnWhereTheFileSystemTakesNoBytesBack) {
  write(*open(), kSix);
  auto folder = open(5 * (8192 + 2 * kIndexEntryBytes));
  arm_fault("io.punch", 1, FaultKind::kEopnotsupp, 1000);
  folder->shrink(std::vector<BlockName>{block(1).name});
  EXPECT_GE(fault_hits("io.punch"), 1U);
  EXPECT_EQ(count(read(*folder, {2, 3, 4, 5, 6})), 5);
}

TEST_F(BlockFolderTest, IsOneProcesssAtATime) {
  auto first = open();
  EXPECT_EQ(open(), nullptr);
  EXPECT_NE(open(kPlenty, "another model"), nullptr);
  first.reset();
  EXPECT_NE(open(), nullptr);
}

TEST_F(BlockFolderTest, RemovesWhatOtherModelsLeftWhereItTakesTooMuch) {
  for (const char* const salt : {"a", "b", "c"}) {
    auto folder = open(kPlenty, salt);
    write(*folder, kSix);
  }
  const auto folders = [&] {
    return std::distance(fs::directory_iterator(dir()), fs::directory_iterator());
  };
  set_bytes(dir() / "a person's file", {'x'});
  EXPECT_EQ(folders(), 4);
  auto folder = open(4 * 8192, "d");
  EXPECT_EQ(folders(), 2) << "the file, and its own";
}

TEST_F(BlockFolderTest, LeavesItsKinAloneAndSharesTheRoom) {
  const uint32_t alone = open(8 * 8192, "group 0")->room();
  write(*open(kPlenty, "group 1"), kSix);
  const auto open_with = [&](const std::string& salt, const std::string& kin, double share) {
    return BlockFolder::try_open(queue_, {.dir = dir(),
                                          .block_bytes = kBytes,
                                          .salt = salt,
                                          .kin = {{kBytes, kin}},
                                          .share = share,
                                          .budget_bytes = 8 * 8192});
  };
  const auto first = open_with("group 0", "group 1", 0.25);
  const auto second = open_with("group 1", "group 0", 0.75);
  EXPECT_EQ(count(read(*second, kSix)), 6);
  EXPECT_EQ(first->room(), alone / 4);
}

TEST_F(BlockFolderTest, SaysOnceThatWhatIsKeptIsOfAnotherGrouping) {
  const auto said = [&](const std::string& salt, const std::string& kin) {
    testing::internal::CaptureStderr();
    auto folder = BlockFolder::try_open(queue_, {.dir = dir(),
                                                 .block_bytes = kBytes,
                                                 .salt = salt,
                                                 .kin = {{kBytes, kin}},
                                                 .budget_bytes = kPlenty});
    return testing::internal::GetCapturedStderr();
  };
  EXPECT_EQ(said("one", "two"), "") << "the folder is new";
  EXPECT_EQ(said("two", "one"), "") << "one group of two is there";
  const std::string line = said("whole", "of it");
  EXPECT_THAT(line, HasSubstr("is of other models, groups of layers or settings (2 folders)"));
  EXPECT_EQ(std::ranges::count(line, '\n'), 1);
  EXPECT_EQ(said("of it", "whole"), "") << "said once, not for each group";
  EXPECT_EQ(said("whole", "of it"), "");
}

// Folders outlive the program: under another name their blocks would not be found.
TEST_F(BlockFolderTest, NamesItsFolderAsEver) {
  write(*open(kPlenty, "salt"), kSix);
  EXPECT_EQ(inner().filename(), "kv-4e47016f5925adb4a1acb35860dcf1a8");
}

TEST_F(BlockFolderTest, SaysWhatIsWrongWithAFolder) {
  set_bytes(dir(), {'x'});
  EXPECT_THAT(error_of([&] { open(); }), HasSubstr("is not a folder; give another name"));
  fs::remove(dir());
  open();
  // A path that is not a file must not be waited for without an end.
  for (const char* const name : {"lock", "blocks", "index"}) {
    const fs::path path = inner() / name;
    fs::remove(path);
    ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
    EXPECT_THAT(error_of([&] { open(); }), HasSubstr("is not a regular file")) << name;
    fs::remove(path);
    open();
  }
  set_bytes(inner() / "index", FileBytes(100, 'x'));
  EXPECT_THAT(error_of([&] { open(); }), HasSubstr("is not a file of spillway's"));
  EXPECT_THAT(
      error_of([&] {
        (void)BlockFolder::try_open(
            queue_,
            {.dir = "/nowhere/at/all", .block_bytes = kBytes, .salt = "", .budget_bytes = kPlenty});
      }),
      HasSubstr("cannot make the folder"));
}

// If the format or the identity is not this program's, nothing of the index is used, and it
// is begun anew.
TEST_F(BlockFolderTest, BeginsAnewWhereTheIndexIsNotItsOwn) {
  for (const size_t at : {8U, 16U, 30U, 60U}) {  // version, block bytes, salt, checksum
    write(*open(), kSix);
    FileBytes index = bytes_of(inner() / "index");
    index[at] = static_cast<char>(index[at] ^ 1);
    set_bytes(inner() / "index", index);
    auto folder = open();
    EXPECT_EQ(folder->blocks().size(), 0U) << at;
    EXPECT_EQ(count(write(*folder, kSix)), 6);
    folder.reset();
    folder = open();
    EXPECT_EQ(count(read(*folder, kSix)), 6);
    for (const uint64_t n : kSix) folder->drop(block(n).name);
  }
}

// A killed process may leave a file that ends anywhere.
TEST_F(BlockFolderTest, LosesOnlyWhatWasNotWholeWhereAFileEndsEarly) {
  write(*open(), kSix);
  const FileBytes index = bytes_of(inner() / "index"), blocks = bytes_of(inner() / "blocks");
  for (size_t length = 0; length <= index.size(); ++length) {
    set_bytes(inner() / "index", {index.begin(), index.begin() + static_cast<ptrdiff_t>(length)});
    auto folder = open();
    const size_t whole =
        length < kIndexHeaderBytes ? 0 : (length - kIndexHeaderBytes) / kIndexEntryBytes;
    EXPECT_EQ(count(read(*folder, kSix)), static_cast<int64_t>(whole)) << length;
    // Blocks that are written after that must not be lost with it.
    EXPECT_EQ(count(write(*folder, {7})), 1);
    folder.reset();
    EXPECT_EQ(count(read(*open(), {7})), 1) << length;
    set_bytes(inner() / "blocks", blocks);
  }
  for (const size_t cut : {0U, 1U, 511U, 4096U, 5000U, 8191U, 8192U, 8193U, 30000U}) {
    set_bytes(inner() / "index", index);
    set_bytes(inner() / "blocks", {blocks.begin(), blocks.begin() + static_cast<ptrdiff_t>(cut)});
    auto folder = open();
    const std::vector<bool> good = read(*folder, kSix);
    for (size_t i = 0; i < good.size(); ++i) {
      if (cut < i * 8192 + kBytes) {
        EXPECT_FALSE(good[i]);
      }
      if (cut >= (i + 1) * 8192) {
        EXPECT_TRUE(good[i]);
      }
    }
  }
}

// Flips, swaps, stale blocks and entries, zeros or truncation anywhere must be noticed. read()
// compares every byte.
TEST_F(BlockFolderTest, NoticesTenThousandCorruptions) {
  write(*open(), kSix);
  const fs::path index_path = inner() / "index", blocks_path = inner() / "blocks";
  const FileBytes old_index = bytes_of(index_path), old_blocks = bytes_of(blocks_path);
  {
    auto folder = open();
    for (const uint64_t n : kSix) folder->drop(block(n).name);
    write(*folder, {11, 12, 13, 14, 15, 16});
  }
  const FileBytes index = bytes_of(index_path), blocks = bytes_of(blocks_path);
  const std::vector<uint64_t> all = {1, 2, 3, 4, 5, 6, 11, 12, 13, 14, 15, 16};
  std::mt19937 random(7);
  const auto below = [&](size_t n) { return random() % n; };
  int64_t lost = 0;
  uint64_t damaged = 0;
  for (int n = 0; n < 10'000; ++n) {
    FileBytes new_index = index, new_blocks = blocks;
    FileBytes& in = n % 2 == 0 ? new_index : new_blocks;
    const size_t unit = n % 2 == 0 ? kIndexEntryBytes : 8192;
    const size_t header = n % 2 == 0 ? kIndexHeaderBytes : 0;
    const size_t units = (in.size() - header) / unit;
    const auto at = [&](size_t which) {
      return in.begin() + static_cast<ptrdiff_t>(header + which * unit);
    };
    const size_t one = below(units), other = below(units);
    switch (below(5)) {
      case 0:
        in[below(in.size())] ^= static_cast<char>(1U << below(8));
        break;
      case 1:
        std::swap_ranges(at(one), at(one) + static_cast<ptrdiff_t>(unit), at(other));
        break;
      case 2:  // an earlier version
        std::copy_n((n % 2 == 0 ? old_index : old_blocks).begin() +
                        static_cast<ptrdiff_t>(header + one % 6 * unit),
                    unit, at(one));
        break;
      case 3:
        std::fill_n(at(one), 1 + below(unit), '\0');
        break;
      default:
        in.resize(below(in.size()));
    }
    set_bytes(index_path, new_index);
    set_bytes(blocks_path, new_blocks);
    std::unique_ptr<BlockFolder> folder;
    try {
      folder = open();
    } catch (const Error& error) {
      // The magic was changed.
      EXPECT_THAT(error.what(), HasSubstr("is not a file of spillway's")) << n;
      continue;
    }
    lost += 6 - count(read(*folder, all));
    damaged += folder->stats().damaged;
    if (HasFailure()) return;
  }
  EXPECT_GT(lost, 5000);
  EXPECT_GT(damaged, 5000U);
}

// Every call that can fail fails in every way.
TEST_F(BlockFolderTest, SurvivesWhateverTheDiskAnswers) {
  for (const char* const point : {"io.open", "io.read", "io.write", "io.sync", "io.rename"}) {
    for (const FaultKind kind :
         {FaultKind::kEio, FaultKind::kEnospc, FaultKind::kEintr, FaultKind::kShort}) {
      for (uint64_t nth = 1; nth <= 12; ++nth) {
        fs::remove_all(dir());
        arm_fault(point, nth, kind);
        std::unique_ptr<BlockFolder> folder;
        try {
          folder = open();
          write(*folder, {1, 2, 3});
          write(*folder, {4, 5, 6});
          read(*folder, kSix);
        } catch (const Error& error) {
          EXPECT_EQ(error.code(), ErrorCode::kIo) << error.what();
          EXPECT_EQ(folder, nullptr) << "only opening it may fail";
        }
        disarm_faults();
        folder.reset();
        folder = open();
        read(*folder, kSix);
        for (const uint64_t n : kSix) folder->drop(block(n).name);
        EXPECT_EQ(count(write(*folder, kSix)), 6) << "it does not recover";
      }
    }
  }
}

TEST_F(BlockFolderTest, StaysAsLargeAsItIsWhereTheDiskIsFull) {
  auto folder = open();
  write(*folder, {1, 2, 3});
  arm_fault("io.write", 1, FaultKind::kEnospc);
  EXPECT_EQ(count(write(*folder, {4})), 0);
  disarm_faults();
  EXPECT_EQ(folder->room(), 0U);
  folder->drop(block(2).name);
  EXPECT_EQ(folder->room(), 1U);
  EXPECT_EQ(count(write(*folder, {5})), 1);
  EXPECT_EQ(count(read(*folder, {1, 3, 5})), 3);
}

}  // namespace
}  // namespace spillway
