// SPDX-License-Identifier: Apache-2.0
// Tests that a bad pytorch_model.bin harms nobody: any damage ends in a model, or in an error of
// one line.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <random>

#include "storage/hf_folder.h"
#include "storage/model_files.h"
#include "storage/test_folder.h"
#include "storage/test_torch_file.h"
#include "storage/torch_reader.h"
#include "tests/hostile/case_runner.h"
#include "tests/hostile/memory_folder.h"

namespace spillway {
namespace {

constexpr std::string_view kConfig = R"({
  "model_type": "llama", "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1,
  "num_attention_heads": 1, "vocab_size": 6, "max_position_embeddings": 64,
  "rms_norm_eps": 1e-05, "hidden_act": "silu", "tie_word_embeddings": true})";
constexpr std::string_view kTokenizer = R"({
  "added_tokens": [{"id": 3, "content": "<e>", "special": true}], "normalizer": null,
  "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "use_regex": false},
  "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]}})";
constexpr std::string_view kFile = "pytorch_model.bin";

// A Llama of one layer whose head shares the embedding's storage, with a buffer of integers. Some
// members have zip64 fields, and one is a parameter.
Bytes small_file() {
  std::vector<TestTensor> tensors;
  std::vector<std::string> storages;
  const auto add = [&](std::string_view name, std::string_view type, std::vector<int64_t> shape) {
    int64_t elements = 1;
    for (const int64_t n : shape) elements *= n;
    tensors.push_back({.name = std::string(name),
                       .type = std::string(type),
                       .storage = static_cast<int>(storages.size()),
                       .storage_elements = elements,
                       .shape = std::move(shape)});
    storages.emplace_back(static_cast<size_t>(elements) * (type == "LongStorage" ? 8 : 2), '?');
  };
  add("model.embed_tokens.weight", "HalfStorage", {6, 8});
  tensors.push_back(tensors[0]);
  tensors.back().name = "lm_head.weight";
  add("model.norm.weight", "HalfStorage", {8});
  const std::string layer = "model.layers.0.";
  for (const char* name : {"input_layernorm", "post_attention_layernorm"})
    add(layer + name + ".weight", "HalfStorage", {8});
  for (const char* name : {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj",
                           "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"})
    add(layer + name + ".weight", "BFloat16Storage", {8, 8});
  add("position_ids", "LongStorage", {1, 2});
  tensors[2].is_parameter = true;

  TestZip zip;
  zip.add("m/data.pkl", TestPickle().state_dict(tensors).text, {.alignment = 1});
  zip.add("m/byteorder", "little", {.alignment = 1});
  for (size_t i = 0; i < storages.size(); ++i) {
    zip.add(fmt::format("m/data/{}", i), storages[i],
            {.zip64 = i % 2 != 0, .alignment = i == 0 ? uint64_t{64} : 2});
  }
  zip.add("m/version", "3\n", {.alignment = 1});
  return to_bytes(zip.bytes());
}

constexpr uint64_t kTorchExtremes[] = {0, 0x80000001, 1ull << 40, UINT64_MAX};

class TorchHostileTest : public ::testing::Test {
 protected:
  TorchHostileTest() {
    folder_.files["config.json"] = to_bytes(kConfig);
    folder_.files["tokenizer.json"] = to_bytes(kTokenizer);
    for (const auto& [name, bytes] : folder_.files) disk_.write(name, bytes);
  }
  void TearDown() override { std::cout << "  " << runner_.summary() << std::endl; }

  Visit visit() {
    return [this](const Bytes& mutant, const std::function<std::string()>& describe) {
      folder_.files[std::string(kFile)] = mutant;
      runner_.run(
          folder_.bytes(),
          [&] {
            ModelFiles model = parse_hf_folder(folder_);
            model.folder = disk_.path();
            return model;
          },
          describe);
    };
  }

  const Bytes file_ = small_file();
  MemoryFolder folder_;
  const TempFolder disk_{memory_folder()};
  CaseRunner runner_;
};

TEST_F(TorchHostileTest, TheUndamagedFileIsAccepted) {
  visit()(file_, [] { return std::string("undamaged"); });
  EXPECT_EQ(runner_.accepted(), 1);
  EXPECT_EQ(runner_.described(), 1);
  EXPECT_EQ(runner_.tokenized(), 1);
}

TEST_F(TorchHostileTest, SurvivesEveryTruncation) {
  each_truncation(file_, file_.size(), visit());
  EXPECT_EQ(runner_.accepted(), 0);
}

// Flips every third bit, so that every number has each of its lower bits flipped in some byte.
TEST_F(TorchHostileTest, SurvivesBitFlips) {
  Bytes mutant = file_;
  for (size_t bit = 0; bit < file_.size() * 8; bit += kSanitized ? 31 : 3) {
    const auto mask = static_cast<std::byte>(1u << (bit % 8));
    mutant[bit / 8] ^= mask;
    visit()(mutant, [&] { return fmt::format("bit {} of byte {} flipped", bit % 8, bit / 8); });
    mutant[bit / 8] ^= mask;
  }
}

TEST_F(TorchHostileTest, SurvivesRandomDamage) {
  random_damage(file_, file_.size(), kSanitized ? 1'000 : 10'000, 1, visit());
  EXPECT_GT(runner_.described(), kSanitized ? 20 : 200);  // so that the code behind is tested
}

TEST_F(TorchHostileTest, SurvivesExtremesEverywhere) {
  for (const size_t width : {4, 8}) {
    for (size_t at = 0; at + width <= file_.size(); at += kSanitized ? 13 : 3) {
      for (const uint64_t value : kTorchExtremes) {
        Bytes mutant = file_;
        std::memcpy(mutant.data() + at, &value, width);
        visit()(mutant, [&] { return fmt::format("{} bytes at {}: {}", width, at, value); });
      }
    }
  }
}

// Only the pickle is damaged, so that every mutant gets as far as its opcodes.
TEST_F(TorchHostileTest, SurvivesDamagedPickles) {
  constexpr size_t kBegin = 30 + sizeof("m/data.pkl") - 1;
  const std::string_view text(reinterpret_cast<const char*>(file_.data()), file_.size());
  const size_t end = text.find("PK\x07\x08");  // the descriptor of data.pkl
  ASSERT_LT(end, file_.size());
  std::mt19937_64 random(5);
  for (size_t at = kBegin; at < end; ++at) {
    for (int i = 0; i < (kSanitized ? 1 : 6); ++i) {
      Bytes mutant = file_;
      mutant[at] = static_cast<std::byte>(random());
      visit()(mutant, [&] { return fmt::format("byte {} of the pickle, try {}", at - kBegin, i); });
    }
  }
}

TEST_F(TorchHostileTest, SurvivesRandomDamageThroughRealFiles) {
  random_damage(file_, file_.size(), kSanitized ? 50 : 300, 1'000'000,
                [&](const Bytes& mutant, const std::function<std::string()>& describe) {
                  std::ofstream(disk_ / kFile, std::ios::binary)
                      .write(reinterpret_cast<const char*>(mutant.data()),
                             static_cast<std::streamsize>(mutant.size()));
                  runner_.run(
                      folder_.bytes() + mutant.size(), [&] { return open_model(disk_.path()); },
                      describe);
                });
}

// Files that are valid or nearly so, and make a naive reader use many times their size in memory,
// or a time that grows with its square.
class TorchAmplificationTest : public TorchHostileTest {
 protected:
  void read(const std::string& file, const char* what) {
    const Bytes bytes = to_bytes(file);
    runner_.run(
        bytes.size(),
        [&] {
          ModelFiles model;
          model.file_bytes = {bytes.size()};
          parse_torch(MemorySource("m.bin", bytes), 0, model);
          model.finish(ModelFiles::SharedExtents::kAllowed);
          return model;
        },
        [&] { return std::string(what); });
  }
  void read_pickle(std::string_view opcodes, const char* what) {
    const std::string pickle = fmt::format("\x80\x02{}.", opcodes);
    read(test_torch_file(pickle, std::vector{std::string(4, '?')}), what);
  }
};

std::string repeat(std::string_view text, size_t bytes) {
  std::string out;
  out.reserve(bytes + text.size());
  while (out.size() < bytes) out += text;
  return out;
}

TEST_F(TorchAmplificationTest, PicklesAreLimited) {
  constexpr size_t kMillion = 1'000'000;
  read_pickle(std::string(20 * kMillion, '}'), "dictionaries");
  read_pickle("N" + std::string(20 * kMillion, '\x85'), "tuples");
  read_pickle("}" + repeat("}}s", 20 * kMillion), "entries");
  read_pickle("}" + repeat("(NNu", 20 * kMillion), "marks");
  read_pickle(std::string(20 * kMillion, '('), "marks that stay");
  read_pickle("}X" + std::string("\x00\x2d\x31\x01", 4) + std::string(20 * kMillion, 'x'),
              "a long text");
  read(test_torch_file(std::string(65 * kMillion, '}'), {}), "a long pickle");
  EXPECT_EQ(runner_.accepted(), 0);
  std::string memo = "}";
  for (uint32_t i = 0; i < 2 * kMillion; ++i) {
    memo += 'r';
    append_number(memo, i);
  }
  read_pickle(memo, "memo");
  EXPECT_EQ(runner_.accepted(), 1);
}

TEST_F(TorchAmplificationTest, MembersAndTensorsAreLimited) {
  TestZip zip;
  for (size_t i = 0; i < 262'000; ++i) zip.add(fmt::format("m/data/{}", i), "", {.alignment = 1});
  zip.add("m/data.pkl", "\x80\x02}.", {.alignment = 1});
  read(zip.bytes(true, true), "members");
  EXPECT_EQ(runner_.accepted(), 1);
  for (const size_t count : {100'000, 300'000}) {
    // All are views of one element.
    std::vector<TestTensor> tensors;
    for (size_t i = 0; i < count; ++i) {
      tensors.push_back({.name = fmt::format("{}", i),
                         .type = "FloatStorage",
                         .storage_elements = 1,
                         .shape = {1, 1}});
    }
    const std::string pickle = TestPickle().state_dict(tensors).text;
    tensors = {};
    read(test_torch_file(pickle, std::vector{std::string(4, '?')}), "tensors");
  }
  EXPECT_EQ(runner_.accepted(), 2);
}

}  // namespace
}  // namespace spillway
