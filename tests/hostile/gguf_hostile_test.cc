// SPDX-License-Identifier: Apache-2.0
// R1 for GGUF: every damage to a header ends in a model or in an error of one line.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "storage/file.h"
#include "storage/gguf_reader.h"
#include "storage/gguf_writer.h"
#include "storage/model_files.h"
#include "storage/temp_folder.h"
#include "tests/hostile/case_runner.h"

namespace spillway {
namespace {

// The keys of a small model, without key number `left_out`.
GgufWriter small_model(int left_out = -1) {
  GgufWriter w(64);
  int n = 0;
  const auto next = [&] { return n++ != left_out; };
  if (next()) w.add("general.architecture", "llama");
  if (next()) w.add("general.name", "tiny");
  if (next()) w.add_u32("llama.block_count", 2);
  if (next()) w.add_u32("llama.context_length", 128);
  if (next()) w.add_f32("llama.rope.freq_base", 10000.0f);
  if (next()) w.add_int("one.u8", NumberType::kU8, 200);
  if (next()) w.add_int("one.i8", NumberType::kI8, -3);
  if (next()) w.add_int("one.u16", NumberType::kU16, 65535);
  if (next()) w.add_int("one.i16", NumberType::kI16, -9);
  if (next()) w.add_int("one.i32", NumberType::kI32, -70000);
  if (next()) w.add_int("one.u64", NumberType::kU64, 1LL << 40);
  if (next()) w.add_int("one.i64", NumberType::kI64, -(1LL << 40));
  if (next()) w.add_double("one.f64", NumberType::kF64, 1e-5);
  if (next()) w.add_bool("tokenizer.ggml.add_bos_token", true);
  if (next())
    w.add("tokenizer.ggml.tokens", StringArray({"<s>", "</s>", "a", "", "\xe2\x96\x81x"}));
  if (next()) w.add_floats("tokenizer.ggml.scores", std::vector<float>{0, 0, -1, -2, -3});
  if (next()) w.add_ints("tokenizer.ggml.token_type", std::vector<int32_t>{3, 3, 1, 1, 1});
  if (next()) w.add("flags", NumberArray{NumberType::kBool, {std::byte{1}, std::byte{0}}});
  w.add_tensor("token_embd.weight", DType::kF16, {5, 32}, Bytes(320, std::byte{1}));
  w.add_tensor("blk.0.attn_q.weight", DType::kQ8_0, {4, 32}, Bytes(136, std::byte{2}));
  w.add_tensor("blk.0.ffn.weight", DType::kQ4_K, {2, 3, 256}, Bytes(864, std::byte{3}));
  w.add_tensor("output_norm.weight", DType::kF32, {32}, Bytes(128, std::byte{4}));
  return w;
}
constexpr int kKeys = 18;

struct Field {
  size_t offset;
  size_t bytes;
};

// Where the integers of a valid header are. Written apart from the reader, on purpose.
std::vector<Field> integer_fields(const Bytes& file) {
  std::vector<Field> fields;
  size_t at = 4;
  const auto integer = [&](size_t bytes) {
    uint64_t value = 0;
    std::memcpy(&value, file.data() + at, bytes);
    fields.push_back({at, bytes});
    at += bytes;
    return value;
  };
  const auto string = [&] { at += integer(8); };
  constexpr size_t kSizes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
  integer(4);
  const uint64_t tensors = integer(8);
  const uint64_t keys = integer(8);
  for (uint64_t i = 0; i < keys; ++i) {
    string();
    uint64_t type = integer(4);
    uint64_t count = 1;
    if (type == 9) {
      type = integer(4);
      count = integer(8);
    }
    for (uint64_t k = 0; k < count; ++k) {
      if (type == 8) {
        string();
      } else {
        integer(kSizes[type]);
      }
    }
  }
  for (uint64_t i = 0; i < tensors; ++i) {
    string();
    for (uint64_t dims = integer(4); dims > 0; --dims) integer(8);
    integer(4);
    integer(8);
  }
  return fields;
}

constexpr uint64_t kExtremes[16] = {
    0,          1,          2,          31,          32,         127,       255,        65535,
    0x7fffffff, 0x80000000, 0xffffffff, 0x100000000, 1ull << 60, INT64_MAX, 1ull << 63, UINT64_MAX};

class GgufHostileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    file_ = small_model().bytes();
    header_bytes_ = small_model().header().size();
  }
  void TearDown() override { std::cout << "  " << runner_.summary() << std::endl; }

  Visit visit() {
    return [this](const Bytes& mutant, const std::function<std::string()>& describe) {
      runner_.run(
          mutant.size(), [&] { return parse_gguf(MemorySource("m.gguf", mutant)); }, describe);
    };
  }

  Bytes file_;
  size_t header_bytes_ = 0;
  CaseRunner runner_;
};

TEST_F(GgufHostileTest, TheUndamagedFileIsAccepted) {
  visit()(file_, [] { return std::string("undamaged"); });
  EXPECT_EQ(runner_.accepted(), 1);
}

TEST_F(GgufHostileTest, SurvivesEveryTruncation) {
  each_truncation(file_, file_.size(), visit());
  EXPECT_EQ(runner_.accepted(), 0);
}

TEST_F(GgufHostileTest, SurvivesEveryBitFlip) { each_bit_flip(file_, header_bytes_, visit()); }

TEST_F(GgufHostileTest, SurvivesExtremesInEveryInteger) {
  const std::vector<Field> fields = integer_fields(file_);
  EXPECT_GT(fields.size(), 100u);
  for (const Field& field : fields) {
    for (const uint64_t value : kExtremes) {
      Bytes mutant = file_;
      std::memcpy(mutant.data() + field.offset, &value, field.bytes);
      visit()(mutant, [&] { return fmt::format("byte {} set to {}", field.offset, value); });
    }
  }
}

TEST_F(GgufHostileTest, SurvivesExtremesInPairsOfIntegers) {
  const std::vector<Field> fields = integer_fields(file_);
  for (uint64_t seed = 0; seed < (kSanitized ? 6'000 : 30'000); ++seed) {
    std::mt19937_64 random(seed);
    Bytes mutant = file_;
    for (int i = 0; i < 2; ++i) {
      const Field& field = fields[random() % fields.size()];
      const uint64_t value = kExtremes[random() % 16];
      std::memcpy(mutant.data() + field.offset, &value, field.bytes);
    }
    visit()(mutant, [&] { return fmt::format("pair of extremes, seed {}", seed); });
  }
}

TEST_F(GgufHostileTest, SurvivesEachKeyDeleted) {
  for (int key = 0; key < kKeys; ++key)
    visit()(small_model(key).bytes(), [&] { return fmt::format("without key {}", key); });
  EXPECT_EQ(runner_.accepted(), kKeys);  // which keys a model needs is not the reader's affair
}

TEST_F(GgufHostileTest, SurvivesRandomDamage) {
  random_damage(file_, header_bytes_, 60'000, 1, visit());
}

TEST_F(GgufHostileTest, SurvivesRandomDamageThroughRealFiles) {
  const TempFolder folder;
  random_damage(file_, header_bytes_, 1000, 1'000'000,
                [&](const Bytes& mutant, const std::function<std::string()>& describe) {
                  const auto path = folder / "m.gguf";
                  std::ofstream(path, std::ios::binary)
                      .write(reinterpret_cast<const char*>(mutant.data()),
                             static_cast<std::streamsize>(mutant.size()));
                  runner_.run(
                      mutant.size(), [&] { return open_model(path); }, describe);
                });
}

}  // namespace
}  // namespace spillway
