// SPDX-License-Identifier: Apache-2.0
#include "measure/tuning_file.h"

#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "base/error.h"

namespace spillway {
namespace {

namespace fs = std::filesystem;

constexpr LinearShape kShape{DType::kQ4_0, WeightLayout::kGroups16, 64, 32};
const TunedMachine kThisMachine{"cpu", "here", "f", 2}, kOtherMachine{"cpu", "there", "f", 2};

class TuningFileTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ =
        fs::path(testing::TempDir()) /
        ("tuning_" + std::string(testing::UnitTest::GetInstance()->current_test_info()->name()));
    fs::remove_all(folder_);
    path_ = folder_ / "new" / "tuning.json";
  }
  void TearDown() override { fs::remove_all(folder_); }

  static TuningTable table(int32_t m2) {
    TuningTable made;
    made.set(kShape, {2, m2});
    return made;
  }
  void damage() const { std::ofstream(path_) << "{\"format\": "; }

  fs::path folder_, path_;
};

TEST_F(TuningFileTest, MachinesKeepTheirOwnTables) {
  write_tuning(path_, kThisMachine, table(8), false);
  write_tuning(path_, kOtherMachine, table(9), false);
  write_tuning(path_, kThisMachine, table(10), false);
  EXPECT_EQ(try_read_tuning(path_, kThisMachine), table(10));
  EXPECT_EQ(try_read_tuning(path_, kOtherMachine), table(9));
  EXPECT_EQ(try_read_tuning(path_, {"cpu", "here", "f", 3}), std::nullopt);
}

TEST_F(TuningFileTest, NoFileIsNoTable) {
  EXPECT_EQ(try_read_tuning(path_, kThisMachine), std::nullopt);
}

TEST_F(TuningFileTest, ADamagedFileIsNoTableAndWarns) {
  write_tuning(path_, kThisMachine, table(8), false);
  damage();
  testing::internal::CaptureStderr();
  EXPECT_EQ(try_read_tuning(path_, kThisMachine), std::nullopt);
  EXPECT_NE(testing::internal::GetCapturedStderr().find("tuning.json"), std::string::npos);
}

TEST_F(TuningFileTest, AFolderIsNoTable) {
  fs::create_directories(path_);
  EXPECT_EQ(try_read_tuning(path_, kThisMachine), std::nullopt);
}

TEST_F(TuningFileTest, ADamagedFileIsReplacedOnlyWhenAsked) {
  write_tuning(path_, kThisMachine, table(8), false);
  damage();
  EXPECT_THROW(write_tuning(path_, kThisMachine, table(9), false), Error);
  write_tuning(path_, kThisMachine, table(9), true);
  EXPECT_EQ(try_read_tuning(path_, kThisMachine), table(9));
}

TEST_F(TuningFileTest, AFolderThatCannotBeMadeIsAnIoError) {
  fs::create_directories(folder_);
  std::ofstream(folder_ / "new") << "a file";
  try {
    write_tuning(path_, kThisMachine, table(8), true);
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(error.code(), ErrorCode::kInternal);
  }
}

}  // namespace
}  // namespace spillway
