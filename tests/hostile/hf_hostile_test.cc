// SPDX-License-Identifier: Apache-2.0
// R1 for Hugging Face folders: config.json, the shard index and safetensors headers, damaged.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "storage/hf_folder.h"
#include "storage/model_files.h"
#include "storage/safetensors_writer.h"
#include "storage/temp_folder.h"
#include "tests/hostile/case_runner.h"

namespace spillway {
namespace {

constexpr std::string_view kConfig = R"({
  "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64,
  "intermediate_size": 172, "num_hidden_layers": 5, "num_attention_heads": 8,
  "rms_norm_eps": 1e-05, "rope_scaling": {"factor": 8.0, "rope_type": "llama3"},
  "eos_token_id": [1, 2], "tie_word_embeddings": true, "layers": [{"a": [1, [2]]}, null]})";
constexpr std::string_view kIndex = R"({"metadata": {"total_size": 1},
  "weight_map": {"model.norm.weight": "model-1.safetensors", "model.q.weight": "model-1.safetensors",
                 "lm_head.weight": "model-2.safetensors"}})";

Bytes to_bytes(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}
std::string to_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

class MemoryFolder final : public FolderSource {
 public:
  const std::string& label() const override { return label_; }
  std::unique_ptr<ByteSource> try_open(std::string_view name) const override {
    const auto it = files.find(name);
    if (it == files.end()) return nullptr;
    return std::make_unique<MemorySource>(std::string(name), it->second);
  }
  uint64_t bytes() const {
    uint64_t sum = 0;
    for (const auto& [name, content] : files) sum += content.size();
    return sum;
  }
  std::map<std::string, Bytes, std::less<>> files;

 private:
  std::string label_ = "folder";
};

MemoryFolder small_folder() {
  MemoryFolder folder;
  folder.files["config.json"] = to_bytes(kConfig);
  folder.files["model.safetensors.index.json"] = to_bytes(kIndex);
  SafetensorsWriter first;
  first.add_tensor("model.norm.weight", "F32", std::vector<int64_t>{16}, Bytes(64));
  first.add_tensor("model.q.weight", "BF16", std::vector<int64_t>{4, 8}, Bytes(64));
  folder.files["model-1.safetensors"] = first.bytes();
  SafetensorsWriter second;
  second.add_tensor("lm_head.weight", "F16", std::vector<int64_t>{2, 4}, Bytes(16));
  second.add_tensor("position_ids", "I64", std::vector<int64_t>{2}, Bytes(16));
  folder.files["model-2.safetensors"] = second.bytes();
  return folder;
}

// What an integer of a JSON text is replaced with.
const std::string kExtremes[] = {"0",
                                 "-1",
                                 "1",
                                 "127",
                                 "255",
                                 "65536",
                                 "2147483648",
                                 "4294967296",
                                 "9223372036854775807",
                                 "9223372036854775808",
                                 "18446744073709551615",
                                 "18446744073709551616",
                                 "1e308",
                                 "1e999",
                                 "0.5",
                                 "-9223372036854775809",
                                 "-0",
                                 "1" + std::string(400, '0'),
                                 "null",
                                 "true",
                                 "\"x\"",
                                 "[]",
                                 "{}",
                                 "[[1]]",
                                 "NaN",
                                 ""};

class HfHostileTest : public ::testing::TestWithParam<const char*> {
 protected:
  HfHostileTest() : folder_(small_folder()), original_(folder_.files[GetParam()]) {}
  void TearDown() override {
    std::cout << "  " << GetParam() << ": " << runner_.summary() << std::endl;
  }

  Visit visit() {
    return [this](const Bytes& mutant, const std::function<std::string()>& describe) {
      folder_.files[GetParam()] = mutant;
      runner_.run(
          folder_.bytes(), [&] { return parse_hf_folder(folder_); },
          [&] { return fmt::format("{}: {}", GetParam(), describe()); });
    };
  }
  bool is_safetensors() const { return std::string_view(GetParam()).ends_with(".safetensors"); }
  size_t header_bytes() const {
    if (!is_safetensors()) return original_.size();
    uint64_t length = 0;
    std::memcpy(&length, original_.data(), sizeof(length));
    return 8 + length;
  }
  std::string json() const {
    const size_t start = is_safetensors() ? 8 : 0;
    return to_text(std::span(original_).subspan(start, header_bytes() - start));
  }
  // The file with its JSON replaced.
  Bytes with_json(std::string_view text) const {
    if (!is_safetensors()) return to_bytes(text);
    Bytes out(8);
    const uint64_t length = text.size();
    std::memcpy(out.data(), &length, sizeof(length));
    const Bytes body = to_bytes(text);
    out.insert(out.end(), body.begin(), body.end());
    out.insert(out.end(), original_.begin() + static_cast<ptrdiff_t>(header_bytes()),
               original_.end());
    return out;
  }

  MemoryFolder folder_;
  Bytes original_;
  CaseRunner runner_;
};

TEST_P(HfHostileTest, TheUndamagedFolderIsAccepted) {
  visit()(original_, [] { return std::string("undamaged"); });
  EXPECT_EQ(runner_.accepted(), 1);
}

TEST_P(HfHostileTest, SurvivesEveryTruncation) {
  each_truncation(original_, original_.size(), visit());
  EXPECT_EQ(runner_.accepted(), 0);
}

TEST_P(HfHostileTest, SurvivesEveryBitFlip) { each_bit_flip(original_, header_bytes(), visit()); }

TEST_P(HfHostileTest, SurvivesRandomDamage) {
  random_damage(original_, header_bytes(), 25'000, 7, visit());
}

TEST_P(HfHostileTest, SurvivesExtremesInEveryInteger) {
  const std::string text = json();
  for (size_t at = 0; at < text.size(); ++at) {
    if (!std::isdigit(static_cast<unsigned char>(text[at]))) continue;
    size_t end = at;
    while (end < text.size() && std::isdigit(static_cast<unsigned char>(text[end]))) ++end;
    for (const std::string& value : kExtremes) {
      visit()(with_json(text.substr(0, at) + value + text.substr(end)),
              [&] { return fmt::format("number at {} set to {}", at, value); });
    }
    at = end;
  }
}

TEST_P(HfHostileTest, SurvivesExtremesInTheFirstEightBytes) {
  for (const uint64_t value :
       {uint64_t{0}, uint64_t{1}, uint64_t{2}, uint64_t{8}, uint64_t{127}, uint64_t{100'000'000},
        uint64_t{100'000'001}, uint64_t{0x7fffffff}, uint64_t{0x80000000}, uint64_t{0xffffffff},
        uint64_t{1} << 32, uint64_t{1} << 60, uint64_t{INT64_MAX}, uint64_t{1} << 63,
        UINT64_MAX - 7, UINT64_MAX}) {
    Bytes mutant = original_;
    std::memcpy(mutant.data(), &value, sizeof(value));
    visit()(mutant, [&] { return fmt::format("first eight bytes {}", value); });
  }
}

// Calls fn for `root` without each of its members, at any depth.
void each_key_deleted(const nlohmann::ordered_json& root, nlohmann::ordered_json::json_pointer at,
                      const std::function<void(const nlohmann::ordered_json&, std::string)>& fn) {
  const nlohmann::ordered_json& value = root[at];
  if (!value.is_object()) return;
  for (const auto& [key, member] : value.items()) {
    nlohmann::ordered_json copy = root;
    copy[at].erase(key);
    fn(copy, (at / key).to_string());
    each_key_deleted(root, at / key, fn);
  }
}

TEST_P(HfHostileTest, SurvivesEachKeyDeleted) {
  each_key_deleted(nlohmann::ordered_json::parse(json()), nlohmann::ordered_json::json_pointer(),
                   [&](const nlohmann::ordered_json& changed, const std::string& key) {
                     visit()(with_json(changed.dump()), [&] { return "without " + key; });
                   });
  EXPECT_GT(runner_.cases(), 3);
}

TEST_P(HfHostileTest, SurvivesRandomDamageThroughRealFiles) {
  const TempFolder disk;
  const auto write = [&](const std::string& name, const Bytes& bytes) {
    std::ofstream(disk / name, std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()),
               static_cast<std::streamsize>(bytes.size()));
  };
  for (const auto& [name, bytes] : folder_.files) write(name, bytes);
  random_damage(original_, header_bytes(), 300, 2'000'000,
                [&](const Bytes& mutant, const std::function<std::string()>& describe) {
                  write(GetParam(), mutant);
                  runner_.run(
                      folder_.bytes() + mutant.size(), [&] { return open_model(disk.path()); },
                      describe);
                });
}

INSTANTIATE_TEST_SUITE_P(Files, HfHostileTest,
                         ::testing::Values("config.json", "model.safetensors.index.json",
                                           "model-1.safetensors", "model-2.safetensors"));

}  // namespace
}  // namespace spillway
