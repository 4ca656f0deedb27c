// SPDX-License-Identifier: Apache-2.0
// Tests that a bad GGUF file harms nobody: any damage to a header ends in a model, or in an error
// of one line.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "storage/file.h"
#include "storage/gguf_reader.h"
#include "storage/gguf_writer.h"
#include "storage/model_files.h"
#include "storage/test_folder.h"
#include "tests/hostile/case_runner.h"

namespace spillway {
namespace {

enum class Words { kByteLevel, kSentencePiece };

void add_tokenizer(Words words, const std::function<bool()>& next, GgufWriter& w) {
  const bool byte_level = words == Words::kByteLevel;
  const std::string key = "tokenizer.ggml.";
  if (next()) w.add(key + "model", byte_level ? "gpt2" : "llama");
  if (next()) w.add(key + "pre", "gpt-2");
  if (next())
    w.add(key + "tokens", byte_level ? StringArray({"<e>", "a", "b", "\xc4\xa0", "ab",
                                                    "\xc4\xa0\x61", "1", "", "u"})
                                     : StringArray({"<unk>", "<s>", "<e>", "<0x61>", "<0xFF>", "a",
                                                    "\xe2\x96\x81", "\xe2\x96\x81\x61", "ab"}));
  if (next()) {
    w.add_ints(key + "token_type", byte_level ? std::vector<int32_t>{3, 1, 1, 1, 1, 1, 1, 5, 4}
                                              : std::vector<int32_t>{2, 3, 3, 6, 6, 1, 1, 1, 5});
  }
  if (byte_level) {
    if (next()) w.add(key + "merges", StringArray({"a b", "\xc4\xa0 a"}));
  } else {
    if (next()) w.add_floats(key + "scores", std::vector<float>{0, 0, 0, 0, 0, -1, -2, -3, -4});
  }
  if (next()) w.add_u32(key + "bos_token_id", 1);
  if (next()) w.add_u32(key + "eos_token_id", byte_level ? 0 : 2);
  if (next()) w.add_u32(key + "unknown_token_id", 0);
  if (next()) w.add_bool(key + "add_bos_token", true);
  if (next()) w.add_bool(key + "add_space_prefix", !byte_level);
  if (next()) w.add("tokenizer.chat_template", "{{ messages }}");
}

// Returns a Llama of one layer with its tokenizer, without key number `left_out`.
GgufWriter small_model(Words words, int left_out = -1) {
  GgufWriter w(64);
  int n = 0;
  const auto next = [&] { return n++ != left_out; };
  if (next()) w.add("general.architecture", "llama");
  if (next()) w.add("general.name", "tiny");
  if (next()) w.add_u32("llama.block_count", 1);
  if (next()) w.add_u32("llama.context_length", 128);
  if (next()) w.add_u32("llama.embedding_length", 32);
  if (next()) w.add_u32("llama.feed_forward_length", 64);
  if (next()) w.add_u32("llama.attention.head_count", 2);
  if (next()) w.add_u32("llama.attention.head_count_kv", 1);
  if (next()) w.add_u32("llama.attention.key_length", 16);
  if (next()) w.add_f32("llama.attention.layer_norm_rms_epsilon", 1e-5F);
  if (next()) w.add_f32("llama.rope.freq_base", 10000.0F);
  if (next()) w.add_u32("llama.rope.dimension_count", 16);
  if (next()) w.add("llama.rope.scaling.type", "linear");
  if (next()) w.add_f32("llama.rope.scaling.factor", 2.0F);
  if (next()) w.add_int("llama.expert_count", NumberType::kU8, 0);
  if (next()) w.add_int("one.i8", NumberType::kI8, -3);
  if (next()) w.add_int("one.u16", NumberType::kU16, 65535);
  if (next()) w.add_int("one.i16", NumberType::kI16, -9);
  if (next()) w.add_int("one.i32", NumberType::kI32, -70000);
  if (next()) w.add_int("one.u64", NumberType::kU64, 1LL << 40);
  if (next()) w.add_int("one.i64", NumberType::kI64, -(1LL << 40));
  if (next()) w.add_double("one.f64", NumberType::kF64, 1e-5);
  if (next()) w.add("flags", NumberArray{NumberType::kBool, {std::byte{1}, std::byte{0}}});
  add_tokenizer(words, next, w);

  const auto tensor = [&](const char* name, DType dtype, std::vector<int64_t> shape) {
    int64_t rows = 1;
    for (size_t i = 0; i + 1 < shape.size(); ++i) rows *= shape[i];
    const auto bytes = static_cast<size_t>(rows * row_bytes(dtype, shape.back()));
    w.add_tensor(name, dtype, std::move(shape), Bytes(bytes, std::byte{0x3f}));
  };
  tensor("token_embd.weight", DType::kF16, {9, 32});
  tensor("output_norm.weight", DType::kF32, {32});
  tensor("unused.weight", DType::kQ4_K, {2, 3, 256});
  tensor("rope_freqs.weight", DType::kF32, {8});
  tensor("blk.0.attn_norm.weight", DType::kF32, {32});
  tensor("blk.0.attn_q.weight", DType::kQ8_0, {32, 32});
  tensor("blk.0.attn_k.weight", DType::kQ4_0, {16, 32});
  tensor("blk.0.attn_v.weight", DType::kQ4_0, {16, 32});
  tensor("blk.0.attn_output.weight", DType::kQ4_0, {32, 32});
  tensor("blk.0.ffn_norm.weight", DType::kF32, {32});
  tensor("blk.0.ffn_gate.weight", DType::kQ4_0, {64, 32});
  tensor("blk.0.ffn_up.weight", DType::kQ4_0, {64, 32});
  tensor("blk.0.ffn_down.weight", DType::kQ4_0, {32, 64});  // fills its 64 bytes: no padding
  return w;
}
constexpr int kKeys = 34;

struct Field {
  size_t offset;
  size_t bytes;
};

// Returns where the integers of a valid header are. This code is independent of the reader on
// purpose.
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

// The damaged files of one kind of model. Each function makes the same ones every time.
class Mutations {
 public:
  explicit Mutations(Words words)
      : words_(words),
        file_(small_model(words).bytes()),
        header_bytes_(small_model(words).header().size()) {}

  const Bytes& file() const { return file_; }
  size_t header_bytes() const { return header_bytes_; }

  void truncations(const Visit& visit) const { each_truncation(file_, file_.size(), visit); }
  void bit_flips(const Visit& visit) const { each_bit_flip(file_, header_bytes_, visit); }
  void extremes(const Visit& visit) const {
    for (const Field& field : integer_fields(file_)) {
      for (const uint64_t value : kExtremes) {
        Bytes mutant = file_;
        std::memcpy(mutant.data() + field.offset, &value, field.bytes);
        visit(mutant, [&] { return fmt::format("byte {} set to {}", field.offset, value); });
      }
    }
  }
  void pairs_of_extremes(const Visit& visit) const {
    const std::vector<Field> fields = integer_fields(file_);
    for (uint64_t seed = 0; seed < (kSanitized ? 1'000 : 12'000); ++seed) {
      std::mt19937_64 random(seed);
      Bytes mutant = file_;
      for (int i = 0; i < 2; ++i) {
        const Field& field = fields[random() % fields.size()];
        const uint64_t value = kExtremes[random() % 16];
        std::memcpy(mutant.data() + field.offset, &value, field.bytes);
      }
      visit(mutant, [&] { return fmt::format("pair of extremes, seed {}", seed); });
    }
  }
  void deleted_keys(const Visit& visit) const {
    for (int key = 0; key < kKeys; ++key)
      visit(small_model(words_, key).bytes(), [&] { return fmt::format("without key {}", key); });
  }
  void random(const Visit& visit) const {
    random_damage(file_, header_bytes_, kSanitized ? 2'000 : 15'000, 1, visit);
  }

 private:
  Words words_;
  Bytes file_;
  size_t header_bytes_;
};

class GgufHostileTest : public ::testing::TestWithParam<Words> {
 protected:
  // Tensors' data are read from the undamaged file.
  GgufHostileTest() : path_(folder_.write("m.gguf", mutations_.file())) {}
  void TearDown() override { std::cout << "  " << runner_.summary() << std::endl; }

  Visit visit() {
    return [this](const Bytes& mutant, const std::function<std::string()>& describe) {
      runner_.run(
          mutant.size(),
          [&] {
            ModelFiles model = parse_gguf(MemorySource("m.gguf", mutant));
            model.paths = {path_};
            return model;
          },
          describe);
    };
  }

  const Mutations mutations_{GetParam()};
  const TempFolder folder_{memory_folder()};
  const std::filesystem::path path_;
  CaseRunner runner_;
};

TEST_P(GgufHostileTest, TheUndamagedFileIsAccepted) {
  visit()(mutations_.file(), [] { return std::string("undamaged"); });
  EXPECT_EQ(runner_.accepted(), 1);
  EXPECT_EQ(runner_.described(), 1);
  EXPECT_EQ(runner_.tokenized(), 1);
}

TEST_P(GgufHostileTest, SurvivesEveryTruncation) {
  mutations_.truncations(visit());
  EXPECT_EQ(runner_.accepted(), 0);
}

TEST_P(GgufHostileTest, SurvivesBitFlips) { mutations_.bit_flips(visit()); }

TEST_P(GgufHostileTest, SurvivesExtremesInEveryInteger) {
  EXPECT_GT(integer_fields(mutations_.file()).size(), 100u);
  mutations_.extremes(visit());
}

TEST_P(GgufHostileTest, SurvivesExtremesInPairsOfIntegers) {
  mutations_.pairs_of_extremes(visit());
}

TEST_P(GgufHostileTest, SurvivesEachKeyDeleted) {
  mutations_.deleted_keys(visit());
  EXPECT_EQ(runner_.accepted(), kKeys);  // the reader does not know which keys a model needs
  EXPECT_EQ(runner_.described(), kKeys - 7);
  EXPECT_EQ(runner_.tokenized(), kKeys - 2);
}

TEST_P(GgufHostileTest, SurvivesRandomDamage) {
  mutations_.random(visit());
  // Enough of them must get past the reader for the code behind it to be tested at all.
  EXPECT_GT(runner_.described(), kSanitized ? 50 : 400);
  EXPECT_GT(runner_.tokenized(), kSanitized ? 50 : 400);
}

TEST_P(GgufHostileTest, SurvivesRandomDamageThroughRealFiles) {
  random_damage(mutations_.file(), mutations_.header_bytes(), kSanitized ? 200 : 1000, 1'000'000,
                [&](const Bytes& mutant, const std::function<std::string()>& describe) {
                  std::ofstream(path_, std::ios::binary)
                      .write(reinterpret_cast<const char*>(mutant.data()),
                             static_cast<std::streamsize>(mutant.size()));
                  runner_.run(
                      mutant.size(), [&] { return open_model(path_); }, describe);
                });
}

INSTANTIATE_TEST_SUITE_P(Tokenizers, GgufHostileTest,
                         ::testing::Values(Words::kByteLevel, Words::kSentencePiece),
                         [](const auto& tested) {
                           return tested.param == Words::kByteLevel ? "ByteLevel" : "SentencePiece";
                         });

TEST(GgufMutationsTest, AreTenThousandOrMore) {
  size_t count = 0;
  const Visit visit = [&](const Bytes&, const std::function<std::string()>&) { ++count; };
  for (const Words words : {Words::kByteLevel, Words::kSentencePiece}) {
    const Mutations mutations(words);
    mutations.truncations(visit);
    mutations.bit_flips(visit);
    mutations.extremes(visit);
    mutations.pairs_of_extremes(visit);
    mutations.deleted_keys(visit);
    mutations.random(visit);
  }
  std::cout << "  " << count << " damaged GGUF files" << std::endl;
  EXPECT_GE(count, kSanitized ? 10'000u : 100'000u);
}

}  // namespace
}  // namespace spillway
