// SPDX-License-Identifier: Apache-2.0
// Tests R1 for Hugging Face folders in which config.json, the shard index, safetensors headers or
// the tokenizer's files are damaged.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "storage/hf_folder.h"
#include "storage/model_files.h"
#include "storage/safetensors_writer.h"
#include "storage/test_folder.h"
#include "tests/hostile/case_runner.h"
#include "tests/hostile/memory_folder.h"

namespace spillway {
namespace {

constexpr std::string_view kConfig = R"({
  "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 16,
  "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
  "num_key_value_heads": 1, "head_dim": 8, "vocab_size": 9, "max_position_embeddings": 64,
  "rms_norm_eps": 1e-05, "rope_theta": 500000.0, "hidden_act": "silu",
  "rope_scaling": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                   "original_max_position_embeddings": 8192, "rope_type": "llama3"},
  "eos_token_id": [1, 2], "tie_word_embeddings": true, "layers": [{"a": [1, [2]]}, null]})";
constexpr std::string_view kGenerationConfig = R"({"eos_token_id": [6, 7], "top_p": 0.9})";
constexpr std::string_view kByteLevelJson = R"({
  "added_tokens": [{"id": 6, "content": "<e>", "special": true},
                   {"id": 7, "content": "<t>", "rstrip": true, "single_word": true}],
  "normalizer": {"type": "NFC"},
  "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
    {"type": "Split", "pattern": {"Regex": "\\d|[^ab]+"}, "behavior": "Isolated"},
    {"type": "ByteLevel", "add_prefix_space": false, "use_regex": false}]},
  "post_processor": {"type": "Sequence", "processors": [{"type": "ByteLevel"},
    {"type": "TemplateProcessing",
     "single": [{"SpecialToken": {"id": "<e>", "type_id": 0}}, {"Sequence": {"id": "A"}}],
     "special_tokens": {"<e>": {"id": "<e>", "ids": [6], "tokens": ["<e>"]}}}]},
  "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "\u0120": 2, "ab": 3, "\u0120ab": 4, "c": 5},
            "merges": ["a b", ["\u0120", "ab"]]}})";
constexpr std::string_view kByteFallbackJson = R"({
  "added_tokens": [{"id": 0, "content": "<unk>", "special": true}],
  "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "\u2581"},
    {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}]},
  "pre_tokenizer": null,
  "model": {"type": "BPE", "unk_token": "<unk>", "fuse_unk": true, "byte_fallback": true,
            "vocab": {"<unk>": 0, "<0x41>": 1, "\u2581": 2, "a": 3, "\u2581a": 4},
            "merges": [["\u2581", "a"]]}})";
constexpr std::string_view kTokenizerConfig = R"({"bos_token": "<e>",
  "eos_token": {"content": "<e>"}, "add_bos_token": true, "add_prefix_space": false,
  "chat_template": [{"name": "default", "template": "{{ a }}"}]})";
constexpr std::string_view kVocab =
    R"({"<s>": 0, "<pad>": 1, "</s>": 2, "a": 3, "b": 4, "ab": 5, "\u0120": 6, "\u0120a": 7})";
constexpr std::string_view kMerges = "#version: 0.2\na b\n\xc4\xa0 a\n";

std::string to_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// The tokenizer that a folder has, and the file of it that is damaged.
struct HfCase {
  const char* name;
  const char* file;
  enum class Tokenizer { kByteLevel, kByteFallback, kGpt2Files } tokenizer = Tokenizer::kByteLevel;

  // Whether the reader itself parses the file; else the tokenizer does.
  bool is_read_first() const {
    const std::string_view name_of_file = file;
    return !name_of_file.starts_with("tokenizer") && name_of_file != "vocab.json" &&
           name_of_file != "merges.txt";
  }
  bool is_safetensors() const { return std::string_view(file).ends_with(".safetensors"); }
};

void PrintTo(const HfCase& hf_case, std::ostream* out) { *out << hf_case.name; }

// Returns a folder with a Llama of one layer in two shards.
MemoryFolder small_folder(HfCase::Tokenizer tokenizer) {
  MemoryFolder folder;
  folder.files["config.json"] = to_bytes(kConfig);
  folder.files["generation_config.json"] = to_bytes(kGenerationConfig);
  folder.files["tokenizer_config.json"] = to_bytes(kTokenizerConfig);
  if (tokenizer == HfCase::Tokenizer::kGpt2Files) {
    folder.files["vocab.json"] = to_bytes(kVocab);
    folder.files["merges.txt"] = to_bytes(kMerges);
  } else {
    const bool fallback = tokenizer == HfCase::Tokenizer::kByteFallback;
    folder.files["tokenizer.json"] = to_bytes(fallback ? kByteFallbackJson : kByteLevelJson);
  }
  nlohmann::ordered_json weight_map;
  const auto add_shard = [&](const std::string& file, auto&& tensors) {
    SafetensorsWriter writer;
    for (const auto& [name, shape] : tensors) {
      int64_t bytes = 2;
      for (const int64_t n : shape) bytes *= n;
      writer.add_tensor(name, "BF16", shape, Bytes(static_cast<size_t>(bytes)));
      weight_map[name] = file;
    }
    if (file == "model-2.safetensors")
      writer.add_tensor("position_ids", "I64", std::vector<int64_t>{2}, Bytes(16));
    folder.files[file] = writer.bytes();
  };
  using Tensors = std::vector<std::pair<std::string, std::vector<int64_t>>>;
  const std::string layer = "model.layers.0.";
  add_shard("model-1.safetensors", Tensors{{"model.embed_tokens.weight", {9, 16}},
                                           {"model.norm.weight", {16}},
                                           {layer + "input_layernorm.weight", {16}},
                                           {layer + "self_attn.q_proj.weight", {16, 16}},
                                           {layer + "self_attn.k_proj.weight", {8, 16}},
                                           {layer + "self_attn.v_proj.weight", {8, 16}}});
  add_shard("model-2.safetensors", Tensors{{layer + "self_attn.o_proj.weight", {16, 16}},
                                           {layer + "post_attention_layernorm.weight", {16}},
                                           {layer + "mlp.gate_proj.weight", {16, 16}},
                                           {layer + "mlp.up_proj.weight", {16, 16}},
                                           {layer + "mlp.down_proj.weight", {16, 16}}});
  const nlohmann::ordered_json index{{"metadata", {{"total_size", 1}}}, {"weight_map", weight_map}};
  folder.files["model.safetensors.index.json"] = to_bytes(index.dump(2));
  return folder;
}

// Values that replace an integer of a JSON text.
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

// Calls `fn` with copies of `root` that each lack one of its members, at any depth.
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

// The damaged versions of one file. Each function makes the same ones every time.
class Mutations {
 public:
  explicit Mutations(const HfCase& hf_case)
      : is_safetensors_(hf_case.is_safetensors()),
        is_json_(std::string_view(hf_case.file) != "merges.txt"),
        original_(small_folder(hf_case.tokenizer).files.at(hf_case.file)) {}

  const Bytes& original() const { return original_; }
  size_t header_bytes() const {
    if (!is_safetensors_) return original_.size();
    uint64_t length = 0;
    std::memcpy(&length, original_.data(), sizeof(length));
    return 8 + length;
  }

  void truncations(const Visit& visit) const {
    each_truncation(original_, original_.size(), visit);
  }
  void bit_flips(const Visit& visit) const { each_bit_flip(original_, header_bytes(), visit); }
  void random(const Visit& visit) const {
    const int sanitized_count = is_safetensors_ ? 1'300 : 500;
    random_damage(original_, header_bytes(), kSanitized ? sanitized_count : 6'000, 7, visit);
  }
  void extremes(const Visit& visit) const {
    const std::string text = json();
    for (size_t at = 0; at < text.size(); ++at) {
      if (!std::isdigit(static_cast<unsigned char>(text[at]))) continue;
      size_t end = at;
      while (end < text.size() && std::isdigit(static_cast<unsigned char>(text[end]))) ++end;
      for (const std::string& value : kExtremes) {
        visit(with_json(text.substr(0, at) + value + text.substr(end)),
              [&] { return fmt::format("number at {} set to {}", at, value); });
      }
      at = end;
    }
  }
  void extreme_lengths(const Visit& visit) const {
    for (const uint64_t value :
         {uint64_t{0}, uint64_t{1}, uint64_t{2}, uint64_t{8}, uint64_t{127}, uint64_t{100'000'000},
          uint64_t{100'000'001}, uint64_t{0x7fffffff}, uint64_t{0x80000000}, uint64_t{0xffffffff},
          uint64_t{1} << 32, uint64_t{1} << 60, uint64_t{INT64_MAX}, uint64_t{1} << 63,
          UINT64_MAX - 7, UINT64_MAX}) {
      Bytes mutant = original_;
      std::memcpy(mutant.data(), &value, sizeof(value));
      visit(mutant, [&] { return fmt::format("first eight bytes {}", value); });
    }
  }
  void deleted_keys(const Visit& visit) const {
    if (!is_json_) return;
    each_key_deleted(nlohmann::ordered_json::parse(json()), nlohmann::ordered_json::json_pointer(),
                     [&](const nlohmann::ordered_json& changed, const std::string& key) {
                       visit(with_json(changed.dump()), [&] { return "without " + key; });
                     });
  }

 private:
  std::string json() const {
    const size_t start = is_safetensors_ ? 8 : 0;
    return to_text(std::span(original_).subspan(start, header_bytes() - start));
  }
  // Returns the file with its JSON replaced.
  Bytes with_json(std::string_view text) const {
    if (!is_safetensors_) return to_bytes(text);
    Bytes out(8);
    const uint64_t length = text.size();
    std::memcpy(out.data(), &length, sizeof(length));
    const Bytes body = to_bytes(text);
    out.insert(out.end(), body.begin(), body.end());
    out.insert(out.end(), original_.begin() + static_cast<ptrdiff_t>(header_bytes()),
               original_.end());
    return out;
  }

  bool is_safetensors_;
  bool is_json_;
  Bytes original_;
};

class HfHostileTest : public ::testing::TestWithParam<HfCase> {
 protected:
  HfHostileTest() : folder_(small_folder(GetParam().tokenizer)) {
    for (const auto& [name, bytes] : folder_.files) write(name, bytes);
  }
  void TearDown() override {
    std::cout << "  " << GetParam().name << ": " << runner_.summary() << std::endl;
  }

  void write(const std::string& name, const Bytes& bytes) const {
    std::ofstream(disk_ / name, std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()),
               static_cast<std::streamsize>(bytes.size()));
  }
  // The tokenizer's files are always read from disk.
  Visit visit() {
    return [this](const Bytes& mutant, const std::function<std::string()>& describe) {
      folder_.files[GetParam().file] = mutant;
      if (!GetParam().is_read_first()) write(GetParam().file, mutant);
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

  MemoryFolder folder_;
  const TempFolder disk_{memory_folder()};
  const Mutations mutations_{GetParam()};
  CaseRunner runner_;
};

TEST_P(HfHostileTest, TheUndamagedFolderIsAccepted) {
  visit()(mutations_.original(), [] { return std::string("undamaged"); });
  EXPECT_EQ(runner_.accepted(), 1);
  EXPECT_EQ(runner_.described(), 1);
  EXPECT_EQ(runner_.tokenized(), 1);
}

TEST_P(HfHostileTest, SurvivesEveryTruncation) {
  mutations_.truncations(visit());
  const std::string_view file = GetParam().file;
  if (GetParam().is_read_first()) {
    EXPECT_EQ(runner_.accepted(), 0);
  } else if (file != "merges.txt") {
    // An empty tokenizer_config.json counts as none.
    EXPECT_EQ(runner_.tokenized(), file == "tokenizer_config.json" ? 1 : 0);
  }
}

TEST_P(HfHostileTest, SurvivesBitFlips) { mutations_.bit_flips(visit()); }

TEST_P(HfHostileTest, SurvivesRandomDamage) { mutations_.random(visit()); }

TEST_P(HfHostileTest, SurvivesExtremesInEveryInteger) { mutations_.extremes(visit()); }

TEST_P(HfHostileTest, SurvivesExtremesInTheFirstEightBytes) { mutations_.extreme_lengths(visit()); }

TEST_P(HfHostileTest, SurvivesEachKeyDeleted) { mutations_.deleted_keys(visit()); }

TEST_P(HfHostileTest, SurvivesRandomDamageThroughRealFiles) {
  random_damage(mutations_.original(), mutations_.header_bytes(), kSanitized ? 50 : 300, 2'000'000,
                [&](const Bytes& mutant, const std::function<std::string()>& describe) {
                  write(GetParam().file, mutant);
                  runner_.run(
                      folder_.bytes() + mutant.size(), [&] { return open_model(disk_.path()); },
                      describe);
                });
}

constexpr HfCase kCases[] = {
    {"Config", "config.json"},
    {"GenerationConfig", "generation_config.json"},
    {"Index", "model.safetensors.index.json"},
    {"FirstShard", "model-1.safetensors"},
    {"SecondShard", "model-2.safetensors"},
    {"ByteLevel", "tokenizer.json"},
    {"ByteFallback", "tokenizer.json", HfCase::Tokenizer::kByteFallback},
    {"TokenizerConfig", "tokenizer_config.json"},
    {"Vocab", "vocab.json", HfCase::Tokenizer::kGpt2Files},
    {"Merges", "merges.txt", HfCase::Tokenizer::kGpt2Files},
};

INSTANTIATE_TEST_SUITE_P(Files, HfHostileTest, ::testing::ValuesIn(kCases),
                         [](const auto& tested) { return std::string(tested.param.name); });

TEST(HfMutationsTest, AreTenThousandOrMore) {
  size_t count = 0;
  size_t of_safetensors = 0;
  for (const HfCase& hf_case : kCases) {
    const Visit visit = [&](const Bytes&, const std::function<std::string()>&) {
      ++count;
      if (hf_case.is_safetensors()) ++of_safetensors;
    };
    const Mutations mutations(hf_case);
    mutations.truncations(visit);
    mutations.bit_flips(visit);
    mutations.random(visit);
    mutations.extremes(visit);
    mutations.extreme_lengths(visit);
    mutations.deleted_keys(visit);
  }
  std::cout << "  " << count << " damaged files of Hugging Face folders, of them " << of_safetensors
            << " safetensors" << std::endl;
  EXPECT_GE(count, kSanitized ? 20'000u : 100'000u);
  EXPECT_GE(of_safetensors, 10'000u);
}

}  // namespace
}  // namespace spillway
