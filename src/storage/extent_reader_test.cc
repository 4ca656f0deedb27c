// SPDX-License-Identifier: Apache-2.0
#include "storage/extent_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

#include "base/fault_points.h"
#include "storage/test_folder.h"

namespace spillway {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class ExtentReaderTest : public ::testing::Test {
 protected:
  ExtentReaderTest() {
    std::mt19937_64 random(1);
    for (int i = 0; i < 2; ++i) {
      content_[i].resize(500'001 + 77'777 * static_cast<size_t>(i));
      for (std::byte& each : content_[i]) each = static_cast<std::byte>(random());
      paths_.push_back(folder_.write(i == 0 ? "a" : "b", content_[i]));
    }
  }
  ~ExtentReaderTest() override { disarm_faults(); }

  bool is_right(const ExtentBatch& batch, std::span<const Extent> extents) const {
    for (size_t i = 0; i < extents.size(); ++i) {
      const auto& file = content_[extents[i].file];
      const auto bytes = batch.bytes(i);
      if (bytes.size() != extents[i].bytes) return false;
      if (!bytes.empty() &&
          std::memcmp(bytes.data(), file.data() + extents[i].offset, bytes.size()) != 0) {
        return false;
      }
    }
    return true;
  }

  TempFolder folder_;
  std::vector<std::byte> content_[2];
  std::vector<std::filesystem::path> paths_;
  IoQueue queue_{{.depth = 4, .piece_bytes = 16384}};
};

TEST_F(ExtentReaderTest, BringsRandomExtentsOfSeveralFiles) {
  const ExtentReader reader(queue_, paths_);
  std::mt19937_64 random(2);
  for (int round = 0; round < 100; ++round) {
    std::vector<Extent> extents;
    for (uint64_t i = 0; i < random() % 8; ++i) {
      const auto file = static_cast<int32_t>(random() % 2);
      const uint64_t size = content_[file].size(), offset = random() % size;
      extents.push_back({file, offset, random() % std::min<uint64_t>(size - offset + 1, 60'000)});
    }
    AlignedBuffer buffer(ExtentReader::buffer_bytes(extents) + 1);
    ExtentBatch batch = reader.begin(extents, buffer.span());
    ASSERT_EQ(batch.size(), extents.size());
    batch.wait();
    EXPECT_TRUE(batch.is_done());
    ASSERT_TRUE(is_right(batch, extents));
  }
}

TEST_F(ExtentReaderTest, OneBatchComesWhileTheOneBeforeIsUsed) {
  const ExtentReader reader(queue_, paths_);
  const auto layer = [](uint64_t i) {
    return std::vector<Extent>{{0, i * 1000, 40'000}, {1, i * 2000 + 3, 50'000}};
  };
  AlignedBuffer buffers[2] = {AlignedBuffer(200'000), AlignedBuffer(200'000)};
  ExtentBatch next = reader.begin(layer(0), buffers[0].span());
  for (uint64_t i = 0; i < 50; ++i) {
    ExtentBatch now = std::move(next);
    now.wait();
    next = reader.begin(layer(i + 1), buffers[(i + 1) % 2].span());
    ASSERT_TRUE(is_right(now, layer(i)));
  }
}

TEST_F(ExtentReaderTest, RefusesExtentsOutsideAndNamesThem) {
  const ExtentReader reader(queue_, paths_);
  AlignedBuffer buffer(100'000);
  const auto error = [&](Extent extent) {
    return error_of([&] { reader.begin(std::span(&extent, 1), buffer.span()); });
  };
  EXPECT_THAT(error({2, 0, 1}), HasSubstr("file 2 of 2"));
  EXPECT_THAT(error({-1, 0, 1}), HasSubstr("file -1 of 2"));
  EXPECT_THAT(error({0, 500'000, 2}), AllOf(HasSubstr("past"), HasSubstr(paths_[0].string())));
  EXPECT_THAT(error({0, UINT64_MAX - 5, 10}), HasSubstr("past"));
}

TEST_F(ExtentReaderTest, AFailedReadIsAnErrorAndTheNextBatchIsRight) {
  const ExtentReader reader(queue_, paths_);
  const std::vector<Extent> extents = {{0, 5, 100'000}, {1, 7, 100'000}};
  AlignedBuffer buffer(ExtentReader::buffer_bytes(extents));
  for (uint64_t nth = 1; nth <= 14; ++nth) {
    arm_fault("io.read", nth, FaultKind::kEio);
    ExtentBatch batch = reader.begin(extents, buffer.span());
    EXPECT_THAT(error_of([&] { batch.wait(); }),
                AllOf(HasSubstr(folder_.path().string()), HasSubstr("at byte")));
    disarm_faults();
    ExtentBatch again = reader.begin(extents, buffer.span());
    again.wait();
    EXPECT_TRUE(is_right(again, extents));
  }
}

}  // namespace
}  // namespace spillway
