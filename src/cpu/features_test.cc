// SPDX-License-Identifier: Apache-2.0
#include "cpu/features.h"

#include <gtest/gtest.h>

#include "cpu/processor.h"

namespace spillway {
namespace {

TEST(CpuFeaturesTest, WhatNeedsOthersIsNotThereWithoutThem) {
  const CpuFeatures& f = cpu_features();
  EXPECT_TRUE(f.dotprod || !f.i8mm);
  EXPECT_TRUE(f.fp16 || !f.fp16fml);
  EXPECT_TRUE(f.avx2 || !(f.avx_vnni || f.avx512_vnni));
  EXPECT_TRUE(f.avx512_vnni || !f.avx512_bf16);
  EXPECT_TRUE(f.avx512_bf16 || !f.amx_bf16);
  EXPECT_TRUE(f.amx_bf16 || !f.amx_int8);
}

TEST(CpuFeaturesTest, FlagsAreThoseThatKernelsAreChosenBy) {
  const CpuFeatures& f = cpu_features();
  const std::string flags = " " + processor_features();
  const auto named = [&](const char* flag) { return flags.find(flag) != std::string::npos; };
  EXPECT_EQ(named(" dotprod"), f.dotprod);
  EXPECT_EQ(named(" i8mm"), f.i8mm);
  EXPECT_EQ(named(" avx2"), f.avx2);
  // A processor may have these flags without the other instructions that the kernels need with
  // them.
  EXPECT_TRUE(named(" avx512_vnni") || !f.avx512_vnni);
  EXPECT_TRUE(named(" amx_bf16") || !f.amx_bf16);
}

using CpuFeaturesDeathTest = testing::Test;

TEST(CpuFeaturesDeathTest, EachCanBeLeftOut) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto without = [](const char* names) {
    leave_out_cpu_features(names);
    const CpuFeatures& f = cpu_features();
    const bool gone = !f.dotprod && !f.i8mm && !f.bf16 && !f.fp16fml && !f.avx2 && !f.avx_vnni &&
                      !f.avx512_vnni && !f.avx512_bf16 && !f.amx_bf16 && !f.amx_int8 &&
                      processor_features().find("avx512") == std::string::npos;
    std::exit(gone ? 0 : 1);
  };
  EXPECT_EXIT(without("bf16,fp16fml,dotprod,avx2"), testing::ExitedWithCode(0), "");
}

TEST(CpuFeaturesDeathTest, UnknownNamesAreErrors) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        try {
          leave_out_cpu_features("amx,mmx");
        } catch (const std::exception& error) {
          fputs(error.what(), stderr);
          std::exit(0);
        }
        std::exit(1);
      },
      testing::ExitedWithCode(0), "mmx.*avx512");
}

}  // namespace
}  // namespace spillway
