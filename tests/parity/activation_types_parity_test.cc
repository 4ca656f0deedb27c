// SPDX-License-Identifier: Apache-2.0
// Tests every op with activations of each type that ops pass to each other: F32, F16, BF16. Results
// are compared with double precision over the inputs as that type holds them.
#include <cmath>

#include "tensor/dequantize.h"
#include "tests/parity/attention_step.h"
#include "tests/parity/paged_kv.h"
#include "tests/parity/parity_device.h"
#include "tests/parity/references.h"

namespace spillway::parity {
namespace {

constexpr ActivationKind kActivations[] = {ActivationKind::kRelu, ActivationKind::kGelu,
                                           ActivationKind::kGeluTanh, ActivationKind::kSilu};
// Odd columns, whole vectors of all lengths, and more columns than a thread block takes.
constexpr int64_t kColumns[] = {1, 7, 64, 100, 576, 1003, 4096};

std::vector<double> doubles(const std::vector<float>& values) {
  return {values.begin(), values.end()};
}

class ActivationTypesTest : public testing::TestWithParam<std::tuple<DeviceKind, DType>> {
 protected:
  DType type() const { return std::get<1>(GetParam()); }
  double bar() const { return kFloatBar + rounding_bar(type()); }
  // Whether the device's ops take activations of this type; most tests are skipped otherwise.
  bool has_type() const { return type() == DType::kF32 || device_.kind().half_activations; }
  std::vector<float> random(int64_t count, uint32_t seed, float deviation = 1) const {
    return rounded(random_floats(count, seed, deviation), type());
  }
  // Returns the layouts that a device has for a matrix of this type: the file's, and the preferred
  // one.
  std::vector<WeightLayout> layouts_of(DType weights) {
    const WeightLayout preferred = device_.device().preferred_layout(weights, 48, 256);
    if (preferred == WeightLayout::kRows) return {preferred};
    return {WeightLayout::kRows, preferred};
  }
  static double linear_bar(DType weights) {
    if (weights == DType::kF32) return kFloatBar;
    if (weights == DType::kBF16) return 2e-5;  // x is rounded to it
    return is_quantized(weights) ? 1e-4 : 1e-5;
  }

  TestDevice device_{std::get<0>(GetParam())};
};

TEST_P(ActivationTypesTest, Norm) {
  if (!has_type()) GTEST_SKIP() << kFloatActivationsOnly;
  for (const NormKind kind : {NormKind::kRms, NormKind::kLayer}) {
    for (const int64_t dim : kColumns) {
      for (const DType from : {DType::kF32, type()}) {  // the residual stream, and others
        for (const bool with_bias : {false, true}) {
          const int64_t rows = 5;
          const auto x = rounded(random_floats(rows * dim, 1, 3), from);
          const Weights weight = random_weights(device_, DType::kF32, 1, dim, 2);
          const Weights bias =
              with_bias ? random_weights(device_, DType::kF32, 1, dim, 3) : Weights();
          const Matrix input(device_, rows, dim, x, from), out(device_, rows, dim, type());
          device_.ops().norm(kind, input.view(), weight.view(), bias.view(), 1e-5F, out.view());
          const Doubles expected =
              norm_reference(kind, x, weight.values(), bias.values(), 1e-5F, rows, dim);
          EXPECT_LE(nmse(out.read(), expected), bar()) << dim << " from " << dtype_name(from);
          out.expect_guards();
          EXPECT_TRUE(same_bits(input.read(), x));
        }
      }
    }
  }
}

// Some columns of a wider row are normed in place; the others stay as they are.
TEST_P(ActivationTypesTest, NormOfHeads) {
  if (!has_type()) GTEST_SKIP() << kFloatActivationsOnly;
  for (const NormKind kind : {NormKind::kRms, NormKind::kLayer}) {
    for (const int64_t dim : {16, 64, 80, 96, 128, 256}) {
      constexpr int64_t kRows = 5, kHeads = 3, kBefore = 8;
      const int64_t width = kBefore + kHeads * dim + 24;
      const auto x = rounded(random_floats(kRows * width, 1, 3), type());
      const Weights weight = random_weights(device_, DType::kF32, 1, dim, 2);
      const Matrix all(device_, kRows, width, x, type());
      device_.ops().head_norm(kind, all.view().columns(kBefore, kHeads * dim), weight.view(),
                              1e-6F);
      std::vector<float> heads, others, others_before;
      Doubles expected;
      const auto got = all.read();
      for (int64_t row = 0; row < kRows; ++row) {
        for (int64_t column = 0; column < width; ++column) {
          const auto at = static_cast<size_t>(row * width + column);
          const bool is_head = column >= kBefore && column < kBefore + kHeads * dim;
          (is_head ? heads : others).push_back(got[at]);
          if (!is_head) others_before.push_back(x[at]);
        }
        const auto first = x.begin() + row * width + kBefore;
        for (const double value : norm_reference(kind, {first, first + kHeads * dim},
                                                 weight.values(), {}, 1e-6F, kHeads, dim))
          expected.push_back(value);
      }
      EXPECT_LE(nmse(heads, expected), bar()) << dim;
      EXPECT_EQ(others, others_before) << dim;
      all.expect_guards();
    }
  }
}

TEST_P(ActivationTypesTest, ActivateAndGatedActivate) {
  if (!has_type()) GTEST_SKIP() << kFloatActivationsOnly;
  for (const ActivationKind kind : kActivations) {
    for (const int64_t cols : kColumns) {
      const int64_t rows = 3;
      const auto x = random(rows * cols, 1, 3), up = random(rows * cols, 2);
      Doubles alone, gated;
      for (size_t i = 0; i < x.size(); ++i) {
        alone.push_back(activation_reference(kind, x[i]));
        gated.push_back(alone.back() * up[i]);
      }
      const Matrix gate(device_, rows, cols, x, type()), ups(device_, rows, cols, up, type());
      const Matrix out(device_, rows, cols, type()), single(device_, rows, cols, x, type());
      device_.ops().gated_activate(kind, gate.view(), ups.view(), out.view());
      EXPECT_LE(nmse(out.read(), gated), bar()) << cols;
      out.expect_guards();
      device_.ops().activate(kind, single.view());
      EXPECT_LE(nmse(single.read(), alone), bar()) << cols;
      single.expect_guards();
    }
  }
}

TEST_P(ActivationTypesTest, Rope) {
  if (!has_type()) GTEST_SKIP() << kFloatActivationsOnly;
  const std::vector<int32_t> positions = {0, 1, 100, 4095, 131071};
  const auto tokens = static_cast<int64_t>(positions.size());
  for (const RopeStyle style : {RopeStyle::kInterleaved, RopeStyle::kHalves}) {
    for (const int64_t head_dim : {8, 80, 128}) {
      for (const int64_t rotary : {head_dim, head_dim / 2}) {
        std::vector<float> frequencies;
        for (int64_t i = 0; i < rotary / 2; ++i) {
          frequencies.push_back(
              std::pow(10000.0F, -2.0F * static_cast<float>(i) / static_cast<float>(rotary)));
        }
        const auto x = random(tokens * 3 * head_dim, 1);
        const Matrix values(device_, tokens, 3 * head_dim, x, type());
        const Matrix angles(device_, tokens, rotary);
        device_.ops().rope_angles(positions, frequencies, 1, angles.view());
        device_.ops().rope(values.view(), static_cast<int>(head_dim), angles.view(), style);
        EXPECT_LE(
            nmse(values.read(), rope_reference(x, positions, frequencies, 1, head_dim, style)),
            bar());
        values.expect_guards();
      }
    }
  }
}

// Rows are also converted between types, as where they leave the residual stream and come back to
// it.
TEST_P(ActivationTypesTest, GatherRows) {
  const std::vector<int32_t> rows = {49, 0, 7, 7, 13};
  for (const auto& [from, to] : {std::pair(type(), type()), std::pair(type(), DType::kF32),
                                 std::pair(DType::kF32, type())}) {
    for (const int64_t cols : kColumns) {
      const auto x = rounded(random_floats(50 * cols, 1), from);
      const Matrix input(device_, 50, cols, x, from), out(device_, 5, cols, to);
      device_.ops().gather_rows(input.view(), rows, out.view());
      std::vector<float> expected;
      for (const int32_t row : rows)
        expected.insert(expected.end(), x.begin() + row * cols, x.begin() + (row + 1) * cols);
      EXPECT_TRUE(same_bits(out.read(), rounded(expected, to)))
          << dtype_name(from) << " to " << dtype_name(to) << ", " << cols;
      out.expect_guards();
    }
  }
}

TEST_P(ActivationTypesTest, LinearOverEveryTypeOfWeights) {
  if (!has_type()) GTEST_SKIP() << kFloatActivationsOnly;
  const int64_t n = 48, k = 512;
  for (const DType stored : kAllDTypes) {
    for (const WeightLayout layout : layouts_of(stored)) {
      const Weights w = random_weights(device_, stored, n, k, 1, layout);
      const Weights bias = random_weights(device_, DType::kF32, 1, n, 4);
      for (const int64_t tokens : {1, 2, 7, 33, 80}) {
        SCOPED_TRACE(testing::Message() << dtype_name(stored) << ", layout "
                                        << static_cast<int>(layout) << ", " << tokens);
        const auto x = random(tokens * k, 2), start = random_floats(tokens * n, 3);
        const Matrix input(device_, tokens, k, x, type());
        const Matrix inner(device_, tokens, n, type()), sum(device_, tokens, n, start);
        device_.ops().linear(w.view(), bias.view(), input.view(), inner.view(), LinearMode::kStore);
        EXPECT_LE(
            nmse(inner.read(), linear_reference(x, w.values(), bias.values(), {}, tokens, n, k)),
            linear_bar(stored) + rounding_bar(type()));
        inner.expect_guards();
        // The residual stream is F32.
        device_.ops().linear(w.view(), {}, input.view(), sum.view(), LinearMode::kAccumulate);
        EXPECT_LE(nmse(sum.read(), linear_reference(x, w.values(), {}, start, tokens, n, k)),
                  linear_bar(stored));
        sum.expect_guards();
        EXPECT_TRUE(same_bits(input.read(), x));
      }
    }
  }
}

// Several linear layers have one input; others have an activation or a gate behind them.
TEST_P(ActivationTypesTest, LinearsActivatedAndGated) {
  if (!has_type()) GTEST_SKIP() << kFloatActivationsOnly;
  const int64_t n = 96, k = 512;
  for (const DType stored :
       {DType::kF32, DType::kF16, DType::kBF16, DType::kQ8_0, DType::kQ4_0, DType::kQ4_K}) {
    const WeightLayout layout = layouts_of(stored).back();
    const Weights w[] = {random_weights(device_, stored, n, k, 1, layout),
                         random_weights(device_, stored, n, k, 2, layout),
                         random_weights(device_, stored, n, k, 3, layout)};
    const Weights bias = random_weights(device_, DType::kF32, 1, n, 4);
    const double bar = linear_bar(stored) + 2 * rounding_bar(type());
    for (const int64_t tokens : {1, 5, 70}) {
      SCOPED_TRACE(testing::Message() << dtype_name(stored) << ", " << tokens);
      const auto x = random(tokens * k, 5, 0.2F);
      const Matrix input(device_, tokens, k, x, type());
      const Matrix a(device_, tokens, n, type()), b(device_, tokens, n, type()),
          c(device_, tokens, n, type());
      const auto product = [&](int which, bool with_bias) {
        return linear_reference(x, w[which].values(),
                                with_bias ? bias.values() : std::vector<float>(), {}, tokens, n, k);
      };
      const Projection parts[] = {{w[0].view(), {}, a.view()},
                                  {w[1].view(), bias.view(), b.view()},
                                  {w[2].view(), {}, c.view()}};
      device_.ops().linears(parts, input.view());
      EXPECT_LE(nmse(a.read(), product(0, false)), bar);
      EXPECT_LE(nmse(b.read(), product(1, true)), bar);
      EXPECT_LE(nmse(c.read(), product(2, false)), bar);

      Doubles gate = product(0, false), up = product(1, true);
      for (double& value : gate) value = activation_reference(ActivationKind::kSilu, value);
      Doubles gated = up;
      for (size_t i = 0; i < gated.size(); ++i) gated[i] *= gate[i];
      device_.ops().gated_linear(ActivationKind::kSilu, parts[0], parts[1], input.view());
      // A product of two results has the errors of both.
      EXPECT_LE(nmse(b.read(), gated), bar + linear_bar(stored));
      for (double& value : up) value = activation_reference(ActivationKind::kRelu, value);
      device_.ops().activated_linear(ActivationKind::kRelu, parts[1], input.view());
      EXPECT_LE(nmse(b.read(), up), bar);
      for (const Matrix* out : {&a, &b, &c}) out->expect_guards();
    }
  }
}

// Returns rows of a sequence's pages, as attention reads them.
std::vector<float> stored_rows(TestDevice& device, const KvLayerView& kv, KvPart part,
                               const SequenceSpan& span) {
  const KvPageLayout layout(kv.type, kv.head_dim);
  std::vector<std::byte> plane(static_cast<size_t>(kv.block_bytes() * kv.blocks));
  device.download(plane.data(), part == KvPart::kKeys ? kv.k : kv.v, plane.size());
  std::vector<float> rows(static_cast<size_t>(span.rows * kv.kv_heads * kv.head_dim));
  for (int32_t i = 0; i < span.rows; ++i) {
    const int32_t position = span.start + i;
    const int64_t block = span.block_table[static_cast<size_t>(position / kKvBlockTokens)];
    for (int64_t head = 0; head < kv.kv_heads; ++head) {
      load_kv_reference(layout, part, plane.data() + (block * kv.kv_heads + head) * layout.bytes,
                        position % kKvBlockTokens,
                        rows.data() + (i * kv.kv_heads + head) * kv.head_dim);
    }
  }
  return rows;
}

struct AppendShape {
  int heads, kv_heads, head_dim, rope_dims;
  RopeStyle style;
  int32_t start, rows;
};
constexpr AppendShape kAppendShapes[] = {{4, 4, 64, 64, RopeStyle::kHalves, 37, 1},
                                         {6, 2, 128, 128, RopeStyle::kHalves, 0, 1},
                                         {4, 1, 64, 64, RopeStyle::kInterleaved, 63, 1},
                                         {4, 2, 64, 32, RopeStyle::kHalves, 15, 3},
                                         {4, 2, 24, 24, RopeStyle::kHalves, 16, 5}};

struct Rotation {
  std::vector<int32_t> positions;
  std::vector<float> frequencies;
};
Rotation rotation_of(const AppendShape& s) {
  Rotation r;
  for (int32_t i = 0; i < s.rows; ++i) r.positions.push_back(s.start + i);
  for (int i = 0; i < s.rope_dims / 2; ++i) r.frequencies.push_back(1 / static_cast<float>(1 + i));
  return r;
}

// q, k and v are column ranges of one buffer, as in a decoder.
TEST_P(ActivationTypesTest, RopeAndAppend) {
  if (!has_type()) GTEST_SKIP() << kFloatActivationsOnly;
  for (const AppendShape& s : kAppendShapes) {
    for (const KvType pages : {KvType::kF32, KvType::kF16, KvType::kBf16}) {
      SCOPED_TRACE(testing::Message() << s.heads << "/" << s.kv_heads << " heads of " << s.head_dim
                                      << ", rope " << s.rope_dims << ", " << kv_type_name(pages));
      const int64_t q_dim = int64_t{s.heads} * s.head_dim,
                    kv_dim = int64_t{s.kv_heads} * s.head_dim;
      const auto q = random(s.rows * q_dim, 1), k = random(s.rows * kv_dim, 2),
                 v = random(s.rows * kv_dim, 3);
      std::vector<float> all;
      for (int64_t i = 0; i < s.rows; ++i) {
        all.insert(all.end(), q.begin() + i * q_dim, q.begin() + (i + 1) * q_dim);
        all.insert(all.end(), k.begin() + i * kv_dim, k.begin() + (i + 1) * kv_dim);
        all.insert(all.end(), v.begin() + i * kv_dim, v.begin() + (i + 1) * kv_dim);
      }
      const Matrix qkv(device_, s.rows, q_dim + 2 * kv_dim, all, type());
      const auto [positions, frequencies] = rotation_of(s);
      const Matrix angles(device_, s.rows, s.rope_dims);
      device_.ops().rope_angles(positions, frequencies, 1, angles.view());
      PagedKv kv(device_, pages, s.kv_heads, s.head_dim, 8);
      const auto table = kv.take_blocks(s.start + s.rows);
      const SequenceSpan span{0, s.rows, s.start, table};
      const Activations queries = qkv.view().columns(0, q_dim);
      device_.ops().rope_and_append(queries, qkv.view().columns(q_dim, kv_dim),
                                    qkv.view().columns(q_dim + kv_dim, kv_dim), angles.view(),
                                    s.style, kv.view(), {&span, 1});
      const double page_bar = kFloatBar + (pages == KvType::kF16    ? 1e-6
                                           : pages == KvType::kBf16 ? 1e-5
                                                                    : 0);
      EXPECT_LE(nmse(stored_rows(device_, kv.view(), KvPart::kKeys, span),
                     rope_reference(k, positions, frequencies, 1, s.head_dim, s.style)),
                page_bar + rounding_bar(type()));
      EXPECT_LE(nmse(stored_rows(device_, kv.view(), KvPart::kValues, span), doubles(v)), page_bar);
      const auto after = qkv.read();
      std::vector<float> rotated;
      for (int64_t i = 0; i < s.rows; ++i) {
        const auto first = after.begin() + i * (q_dim + 2 * kv_dim);
        rotated.insert(rotated.end(), first, first + q_dim);
      }
      EXPECT_LE(nmse(rotated, rope_reference(q, positions, frequencies, 1, s.head_dim, s.style)),
                bar());
      qkv.expect_guards();
    }
  }
}

TEST_P(ActivationTypesTest, ProjectAndAppend) {
  if (!has_type()) GTEST_SKIP() << kFloatActivationsOnly;
  const int64_t k = 256;
  // A device's activations have the type of its weights, if that is plain.
  for (const DType stored : {type(), DType::kQ8_0, DType::kQ4_0}) {
    const WeightLayout layout = layouts_of(stored).back();
    for (const AppendShape& s : kAppendShapes) {
      SCOPED_TRACE(testing::Message() << dtype_name(stored) << ", " << s.heads << "/" << s.kv_heads
                                      << " heads of " << s.head_dim << ", rope " << s.rope_dims);
      const int64_t q_dim = int64_t{s.heads} * s.head_dim,
                    kv_dim = int64_t{s.kv_heads} * s.head_dim;
      const Weights wq = random_weights(device_, stored, q_dim, k, 1, layout),
                    wk = random_weights(device_, stored, kv_dim, k, 2, layout),
                    wv = random_weights(device_, stored, kv_dim, k, 3, layout);
      const Weights bias = random_weights(device_, DType::kF32, 1, kv_dim, 4);
      const auto x = random(s.rows * k, 5);
      const Matrix input(device_, s.rows, k, x, type());
      const Matrix q_out(device_, s.rows, q_dim, type()), k_out(device_, s.rows, kv_dim, type()),
          v_out(device_, s.rows, kv_dim, type());
      const auto [positions, frequencies] = rotation_of(s);
      const Matrix angles(device_, s.rows, s.rope_dims);
      device_.ops().rope_angles(positions, frequencies, 1, angles.view());
      PagedKv kv(device_, KvType::kF16, s.kv_heads, s.head_dim, 8);
      const auto table = kv.take_blocks(s.start + s.rows);
      const SequenceSpan span{0, s.rows, s.start, table};
      device_.ops().project_and_append({wq.view(), {}, q_out.view()},
                                       {wk.view(), bias.view(), k_out.view()},
                                       {wv.view(), bias.view(), v_out.view()}, input.view(),
                                       angles.view(), s.style, kv.view(), {&span, 1});
      const auto expected = [&](const Weights& w, const Weights& b, int64_t n, bool rotate) {
        const Doubles product = linear_reference(x, w.values(), b.values(), {}, s.rows, n, k);
        if (!rotate) return product;
        const std::vector<float> floats(product.begin(), product.end());
        return rope_reference(floats, positions, frequencies, 1, s.head_dim, s.style);
      };
      const double inner_bar = linear_bar(stored) + 2 * rounding_bar(type());
      EXPECT_LE(nmse(q_out.read(), expected(wq, Weights(), q_dim, true)), inner_bar);
      EXPECT_LE(nmse(stored_rows(device_, kv.view(), KvPart::kKeys, span),
                     expected(wk, bias, kv_dim, true)),
                inner_bar + 1e-6);
      EXPECT_LE(nmse(stored_rows(device_, kv.view(), KvPart::kValues, span),
                     expected(wv, bias, kv_dim, false)),
                inner_bar + 1e-6);
      for (const Matrix* out : {&q_out, &k_out, &v_out}) out->expect_guards();
    }
  }
}

TEST_P(ActivationTypesTest, AppendAndAttention) {
  if (!has_type()) GTEST_SKIP() << kFloatActivationsOnly;
  using Lengths = std::vector<std::pair<int32_t, int32_t>>;
  for (const KvType pages : kAllKvTypes) {
    for (AttentionCase c : {AttentionCase{.heads = 4, .kv_heads = 4, .head_dim = 64},
                            AttentionCase{.heads = 6, .kv_heads = 2, .head_dim = 80, .window = 100},
                            AttentionCase{.heads = 8, .kv_heads = 1, .head_dim = 128}}) {
      c.type = pages;
      c.rows = type();
      for (const Lengths& lengths : {Lengths{{0, 1}, {17, 1}, {300, 1}}, Lengths{{0, 70}},
                                     Lengths{{0, 20}, {300, 1}, {256, 40}, {15, 2}}}) {
        SCOPED_TRACE(describe(c, lengths));
        AttentionStep step(device_, c, lengths);
        EXPECT_LE(nmse(step.run(), step.expected()), bar_of(c));
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, ActivationTypesTest,
                         testing::Combine(testing::ValuesIn(device_kinds()),
                                          testing::Values(DType::kF32, DType::kF16, DType::kBF16)),
                         typed_name);

}  // namespace
}  // namespace spillway::parity
