// SPDX-License-Identifier: Apache-2.0
#include "tensor/kv_format.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "tensor/half.h"

namespace spillway {
namespace {

std::vector<float> random_row(int64_t count, uint32_t seed, float deviation = 1) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0, deviation);
  std::vector<float> x(static_cast<size_t>(count));
  for (float& value : x) value = normal(generator);
  return x;
}

constexpr std::pair<KvType, KvPart> kAllParts[] = {
    {KvType::kF32, KvPart::kKeys},    {KvType::kF16, KvPart::kKeys},
    {KvType::kBf16, KvPart::kKeys},   {KvType::kInt8, KvPart::kKeys},
    {KvType::kInt4, KvPart::kKeys},   {KvType::kF32, KvPart::kValues},
    {KvType::kF16, KvPart::kValues},  {KvType::kBf16, KvPart::kValues},
    {KvType::kInt8, KvPart::kValues}, {KvType::kInt4, KvPart::kValues}};

TEST(KvFormatTest, RotationKeepsProductsAndIsItsOwnInverse) {
  for (int64_t dim = 8; dim <= 256; dim += 8) {
    const auto x = random_row(dim, 1), y = random_row(dim, 2);
    auto a = x, b = y;
    rotate_kv(a.data(), dim);
    rotate_kv(b.data(), dim);
    EXPECT_NE(a, x);
    double before = 0, after = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      before += double{x[i]} * y[i];
      after += double{a[i]} * b[i];
    }
    EXPECT_NEAR(before, after, 1e-4);
    rotate_kv(a.data(), dim);
    for (size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(a[i], x[i], 1e-5);
  }
}

// Returns the squared error of rounding each element to one of sixteen values between the ends of
// its group, which is what int4 would have without rotation.
double plain_int4_error(const std::vector<float>& x) {
  double error = 0;
  for (size_t first = 0; first < x.size(); first += kKvGroup) {
    const size_t end = std::min(x.size(), first + kKvGroup);
    const auto [low, high] = std::minmax_element(x.data() + first, x.data() + end);
    const double step = (double{*high} - *low) / 15;
    for (size_t i = first; i < end; ++i) {
      error += std::pow(*low + step * std::nearbyint((x[i] - *low) / step) - x[i], 2);
    }
  }
  return error;
}

TEST(KvFormatTest, RotationTamesOutliersOfInt4) {
  for (const KvPart part : {KvPart::kKeys, KvPart::kValues}) {
    for (const int64_t dim : {48, 64, 80, 96, 128}) {
      double rotated = 0, plain = 0;
      for (uint32_t row = 0; row < 20; ++row) {
        auto x = random_row(dim, row);
        for (int64_t first = 0; first < dim; first += kKvGroup)
          x[static_cast<size_t>(first + row % 16)] = row % 2 == 0 ? 40.0F : -40.0F;
        const KvPageLayout layout(KvType::kInt4, dim);
        std::vector<std::byte> page(static_cast<size_t>(layout.bytes));
        std::vector<float> back(x.size());
        store_kv_reference(layout, part, x.data(), page.data(), 0);
        load_kv_reference(layout, part, page.data(), 0, back.data());
        for (size_t i = 0; i < x.size(); ++i) rotated += std::pow(double{back[i]} - x[i], 2);
        plain += plain_int4_error(x);
      }
      EXPECT_LT(rotated, plain / 2) << dim;
    }
  }
}

TEST(KvFormatTest, NamesAreReadBack) {
  for (const KvType type : kAllKvTypes) EXPECT_EQ(try_kv_type_from_name(kv_type_name(type)), type);
  EXPECT_EQ(try_kv_type_from_name("q8"), std::nullopt);
}

TEST(KvFormatTest, PagesTakeTheBytesThatTheFormatSays) {
  EXPECT_EQ(kv_page_bytes(KvType::kF32, 64), 16 * 64 * 4);
  EXPECT_EQ(kv_page_bytes(KvType::kF16, 80), 16 * 80 * 2);
  EXPECT_EQ(kv_page_bytes(KvType::kBf16, 80), 16 * 80 * 2);
  EXPECT_EQ(kv_page_bytes(KvType::kInt8, 64), 32 + 16 * 64);
  EXPECT_EQ(kv_page_bytes(KvType::kInt8, 80), 64 + 16 * 80);
  EXPECT_EQ(kv_page_bytes(KvType::kInt4, 128), 2 * 2 * 32 + 16 * 64);
  EXPECT_EQ(kv_page_bytes(KvType::kInt4, 8), 64 + 16 * 4);
  EXPECT_TRUE(kv_type_supports(KvType::kF16, 5));
  EXPECT_FALSE(kv_type_supports(KvType::kInt8, 20));
  EXPECT_FALSE(kv_type_supports(KvType::kInt4, 264));
}

TEST(KvFormatTest, WhatIsReadBackIsWithinHalfAStep) {
  for (const auto& [type, part] : kAllParts) {
    for (int64_t dim = 8; dim <= 256; dim += 8) {
      const KvPageLayout layout(type, dim);
      auto x = random_row(dim, static_cast<uint32_t>(dim));
      std::vector<std::byte> page(static_cast<size_t>(layout.bytes));
      std::vector<float> back(x.size());
      store_kv_reference(layout, part, x.data(), page.data(), 5);
      load_kv_reference(layout, part, page.data(), 5, back.data());
      if (is_rotated(type)) {  // the bound holds for rotated rows
        rotate_kv(x.data(), dim);
        rotate_kv(back.data(), dim);
      }
      for (int64_t i = 0; i < dim; ++i) {
        const int64_t first = i / kKvGroup * kKvGroup;
        const int64_t end = std::min(dim, first + kKvGroup);
        const auto [low, high] = std::minmax_element(x.begin() + first, x.begin() + end);
        const float largest = std::max(std::fabs(*low), std::fabs(*high));
        float step = 0;  // leaves some room for the rounding of scale and minimum
        if (type == KvType::kF16) step = largest / 1024;
        if (type == KvType::kBf16) step = largest / 128;
        if (type == KvType::kInt8) step = largest / 127 * 1.13F;
        if (type == KvType::kInt4) step = (*high - *low) / 15 * 1.02F + largest / 512;
        EXPECT_NEAR(back[static_cast<size_t>(i)], x[static_cast<size_t>(i)], step / 2)
            << kv_type_name(type) << " " << dim << " " << i;
      }
    }
  }
}

TEST(KvFormatTest, ATokenTouchesItsOwnBytesOnly) {
  for (const auto& [type, part] : kAllParts) {
    for (const int64_t dim : {8, 64, 80, 112, 128}) {
      const KvPageLayout layout(type, dim);
      std::vector<std::byte> page(static_cast<size_t>(layout.bytes));
      std::vector<std::vector<float>> rows, back(16, std::vector<float>(static_cast<size_t>(dim)));
      for (int token = 0; token < 16; ++token) {
        rows.push_back(random_row(dim, static_cast<uint32_t>(token + 1)));
        store_kv_reference(layout, part, rows.back().data(), page.data(), token);
        load_kv_reference(layout, part, page.data(), token,
                          back[static_cast<size_t>(token)].data());
      }
      for (int token = 15; token >= 0; --token) {
        std::vector<float> again(static_cast<size_t>(dim));
        load_kv_reference(layout, part, page.data(), token, again.data());
        EXPECT_EQ(again, back[static_cast<size_t>(token)]) << kv_type_name(type) << " " << dim;
      }
    }
  }
}

TEST(KvFormatTest, ExtremeRowsStayFinite) {
  const std::vector<std::vector<float>> rows{
      std::vector<float>(64, 0), std::vector<float>(64, 3.25F), std::vector<float>(64, -1e-9F),
      random_row(64, 1, 1e-7F), random_row(64, 2, 1e4F)};
  for (const auto& [type, part] : kAllParts) {
    if (!is_quantized(type)) continue;
    const KvPageLayout layout(type, 64);
    for (const auto& row : rows) {
      std::vector<std::byte> page(static_cast<size_t>(layout.bytes));
      std::vector<float> back(64);
      store_kv_reference(layout, part, row.data(), page.data(), 0);
      load_kv_reference(layout, part, page.data(), 0, back.data());
      for (const float value : back) EXPECT_TRUE(std::isfinite(value)) << row[0];
    }
    std::vector<std::byte> page(static_cast<size_t>(layout.bytes));
    std::vector<float> back(64);
    store_kv_reference(layout, part, rows[1].data(), page.data(), 0);
    load_kv_reference(layout, part, page.data(), 0, back.data());
    for (const float value : back) EXPECT_NEAR(value, 3.25F, is_rotated(type) ? 0.9F : 0.002F);
  }
}

TEST(KvFormatTest, WhatATypeCannotHoldIsNoNumber) {
  const float infinity = std::numeric_limits<float>::infinity(), nan = NAN;
  struct Row {
    float value;  // the value of one element among small ones
    KvStored f32, f16, bf16, int8, int4;
  };
  constexpr auto kWell = KvStored::kWell, kBeyond = KvStored::kBeyondRange,
                 kNone = KvStored::kNotFinite;
  for (const Row& row :
       {Row{65504, kWell, kWell, kWell, kWell, kWell},
        {65519, kWell, kWell, kWell, kWell, kWell},
        {-65520, kWell, kBeyond, kWell, kWell, kWell},  // int4 spreads it over the group
        {1e6F, kWell, kBeyond, kWell, kWell, kBeyond},
        {-1e8F, kWell, kBeyond, kWell, kBeyond, kBeyond},
        {3e38F, kWell, kBeyond, kWell, kBeyond, kBeyond},
        {-3.396e38F, kWell, kBeyond, kWell, kBeyond, kBeyond},
        {3.397e38F, kWell, kBeyond, kBeyond, kBeyond, kBeyond},
        {infinity, kNone, kNone, kNone, kNone, kNone},
        {-infinity, kNone, kNone, kNone, kNone, kNone},
        {nan, kNone, kNone, kNone, kNone, kNone},
        {-nan, kNone, kNone, kNone, kNone, kNone}}) {
    for (const auto& [type, part] : kAllParts) {
      const KvStored expected = type == KvType::kF32    ? row.f32
                                : type == KvType::kF16  ? row.f16
                                : type == KvType::kBf16 ? row.bf16
                                : type == KvType::kInt8 ? row.int8
                                                        : row.int4;
      const KvPageLayout layout(type, 128);
      std::vector<float> x = random_row(128, 5, 1), back(128);
      x[70] = row.value;
      std::vector<std::byte> page(static_cast<size_t>(layout.bytes));
      EXPECT_EQ(store_kv_reference(layout, part, x.data(), page.data(), 3), expected)
          << kv_type_name(type) << " " << row.value;
      load_kv_reference(layout, part, page.data(), 3, back.data());
      EXPECT_EQ(std::isnan(back[70]), expected != kWell) << kv_type_name(type) << " " << row.value;
      for (size_t i = 0; i < 64; ++i) ASSERT_TRUE(std::isfinite(back[i])) << "of another group";
    }
  }
}

}  // namespace
}  // namespace spillway
