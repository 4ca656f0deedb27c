// SPDX-License-Identifier: Apache-2.0
// Tests every table of bfloat16 kernels that this processor can run, without linear_bf16.cc around
// it.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <vector>

#include "cpu/features.h"
#include "cpu/linear/linear_bf16_args.h"
#include "tensor/dequantize.h"
#include "tensor/packed_layout.h"
#include "tensor/random_fill.h"
#include "tensor/tensor_view.h"

namespace spillway {
namespace {

struct Table {
  const char* name;
  const Bf16Kernels* kernels;
};

std::vector<Table> available_tables() {
  std::vector<Table> tables;
#if defined(__x86_64__)
  if (cpu_features().avx512_bf16) tables.push_back({"AVX-512", &kAvx512Bf16Kernels});
  if (cpu_features().amx_bf16) tables.push_back({"AMX", &kAmxBf16Kernels});
#elif defined(__aarch64__)
  if (cpu_features().bf16) tables.push_back({"bfmmla", &kBfmmlaKernels});
#endif
  return tables;
}

// Rounds to the nearest bfloat16, ties to even.
float rounded(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  return std::bit_cast<float>((bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000);
}

struct Shape {
  int64_t rows, tokens, depth;
};

// Returns values that bfloat16 must round, and a few ties; no two rows or columns are alike.
std::vector<float> values(int64_t count, uint32_t seed) {
  std::vector<float> x(static_cast<size_t>(count));
  for (size_t i = 0; i < x.size(); ++i) {
    seed = seed * 1664525 + 1013904223;
    x[i] = static_cast<float>(static_cast<int32_t>(seed)) * 0x1p-31F;
    if (i % 7 == 0)
      x[i] = std::bit_cast<float>((std::bit_cast<uint32_t>(x[i]) & ~0xffffU) | 0x8000);
  }
  return x;
}

void expect_product(const Table& table, const Shape& shape, bool add, bool with_bias) {
  const auto [rows, tokens, depth] = shape;
  const Bf16Kernels& kernels = *table.kernels;
  ASSERT_LE(rows, kernels.row_tile);
  const int64_t stride = depth + 5, tiles = (tokens + kernels.token_tile - 1) / kernels.token_tile;
  const std::vector<float> w = values(rows * stride, 1), x = values(tokens * stride, 2);
  const std::vector<float> bias = values(rows, 3), old = values(tokens * rows, 4);
  constexpr uint16_t kGarbage = 0x7fc0;  // NaN, so that reading what was not written shows
  const int64_t tile_stride = kernels.token_tile * depth + 64;
  std::vector<uint16_t> panel(static_cast<size_t>(kernels.row_tile * depth), kGarbage);
  std::vector<uint16_t> packed(static_cast<size_t>(tiles * tile_stride), kGarbage);
  kernels.pack_rows(w.data(), stride, rows, depth, panel.data());
  for (int64_t i = 0; i < tiles; ++i) {
    const int64_t first = i * kernels.token_tile;
    const int64_t count = std::min(kernels.token_tile, tokens - first);
    kernels.pack_tokens(x.data() + first * stride, stride, count, depth,
                        packed.data() + i * tile_stride);
    for (int64_t k = 0; k < 64; ++k) {
      ASSERT_EQ(packed[static_cast<size_t>((i + 1) * tile_stride - 64 + k)], kGarbage)
          << "pack_tokens wrote past its tile";
    }
  }
  constexpr float kBorder = 1234.5F;
  const int64_t out_stride = rows + 3;
  std::vector<float> out(static_cast<size_t>((tokens + 1) * out_stride), kBorder);
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t r = 0; r < rows; ++r) {
      out[static_cast<size_t>(t * out_stride + r)] =
          add ? old[static_cast<size_t>(t * rows + r)] : NAN;
    }
  }
  kernels.multiply({.panel = panel.data(),
                    .x = packed.data(),
                    .x_tile_stride = tile_stride,
                    .depth = depth,
                    .tokens = tokens,
                    .rows = rows,
                    .out = out.data(),
                    .out_stride = out_stride,
                    .bias = with_bias ? bias.data() : nullptr,
                    .add = add});
  double worst = 0;
  for (int64_t t = 0; t <= tokens; ++t) {
    for (int64_t r = 0; r < out_stride; ++r) {
      const float got = out[static_cast<size_t>(t * out_stride + r)];
      if (t == tokens || r >= rows) {
        ASSERT_EQ(got, kBorder) << "written outside: token " << t << ", row " << r;
        continue;
      }
      double sum = 0, size = 1;
      if (with_bias) sum += bias[static_cast<size_t>(r)];
      if (add) sum += old[static_cast<size_t>(t * rows + r)];
      for (int64_t k = 0; k < depth; ++k) {
        const double product = double{rounded(w[static_cast<size_t>(r * stride + k)])} *
                               rounded(x[static_cast<size_t>(t * stride + k)]);
        sum += product;
        size += std::fabs(product);
      }
      const double error = std::fabs(sum - got) / size;
      worst = error > worst || std::isnan(error) ? error : worst;
    }
  }
  EXPECT_LE(worst, 1e-6) << table.name << ": " << rows << " rows, " << tokens << " tokens, depth "
                         << depth;
}

TEST(LinearBf16KernelsTest, EveryTableComputesTheProduct) {
  if (available_tables().empty()) GTEST_SKIP() << "no bfloat16 kernels for this processor";
  for (const Table& table : available_tables()) {
    // The shapes have odd rows and tokens, and depths around the cuts of the kernels.
    for (const int64_t rows : {int64_t{1}, int64_t{15}, int64_t{16}, int64_t{17}, int64_t{32}}) {
      if (rows > table.kernels->row_tile) continue;
      for (const int64_t tokens : {1, 2, 15, 16, 17, 31, 32, 33, 70}) {
        expect_product(table, {rows, tokens, 96}, tokens % 2 == 0, rows % 2 == 0);
      }
    }
    const int64_t all = table.kernels->row_tile;
    for (const int64_t depth : {32, 64, 480, 512, 544, 1024, 1696}) {
      if (depth > table.kernels->max_depth) continue;
      expect_product(table, {all, 300, depth}, depth % 64 == 0, true);
      expect_product(table, {all - 1, 33, depth}, depth % 64 != 0, false);
    }
  }
}

// A panel of packed groups equals that of their decoded rows, except for a rounding in between.
TEST(LinearBf16KernelsTest, PacksGroupsLikeTheirRows) {
  bool any = false;
  for (const Table& table : available_tables()) {
    if (table.kernels->try_fill == nullptr) continue;
    const int64_t most = table.kernels->row_tile / kGroupRows;
    for (const DType type : kAllDTypes) {
      const Bf16Fill fill = table.kernels->try_fill(type, true);
      if (fill == nullptr) continue;
      any = true;
      for (int64_t groups = 1; groups <= most; ++groups) {
        constexpr int64_t kCols = 1024, kFirst = 256, kDepth = 512;  // columns inside rows
        const int64_t rows = groups * kGroupRows, group_bytes = kGroupRows * row_bytes(type, kCols);
        std::vector<std::byte> stored(static_cast<size_t>(groups * group_bytes));
        fill_random(type, stored.data(), rows * kCols, 5, 0.5F);
        std::vector<float> weights(static_cast<size_t>(rows * kCols));
        dequantize_reference(type, stored.data(), weights.data(), rows * kCols);
        pack_groups(type, stored.data(), stored.data(), groups, kCols);
        std::vector<uint16_t> wanted(static_cast<size_t>(table.kernels->row_tile * kDepth), 1);
        std::vector<uint16_t> got(wanted.size() + 64, 0x7fc0);
        table.kernels->pack_rows(weights.data() + kFirst, kCols, rows, kDepth, wanted.data());
        fill(reinterpret_cast<const uint8_t*>(stored.data()) + kGroupRows * row_bytes(type, kFirst),
             row_bytes(type, kCols), rows, kDepth, got.data());
        for (size_t i = 0; i < got.size(); ++i) {
          if (i >= wanted.size()) {
            ASSERT_EQ(got[i], 0x7fc0) << "written outside";
            continue;
          }
          const auto value = [](uint16_t bits) {
            return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
          };
          ASSERT_NEAR(value(got[i]), value(wanted[i]), std::fabs(value(wanted[i])) / 128 + 1e-7)
              << table.name << ", " << dtype_name(type) << ", element " << i;
        }
      }
    }
  }
  if (!any) GTEST_SKIP() << "no kernels that pack groups for this processor";
}

}  // namespace
}  // namespace spillway
