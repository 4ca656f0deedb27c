// SPDX-License-Identifier: Apache-2.0
// Makes a tiny random encoder as a Hugging Face folder, for tests.
#pragma once

#include <fmt/core.h>

#include <cmath>
#include <cstdint>
#include <map>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "predict/encoder_spec.h"
#include "storage/safetensors_writer.h"
#include "storage/test_folder.h"

namespace spillway {

// Its vocabulary has a to z, alone and within words, some words, and the special tokens.
class TestEncoderFolder {
 public:
  explicit TestEncoderFolder(EncoderFamily family = EncoderFamily::kBert, int64_t width = 32,
                             const std::string& prefix = "") {
    const bool is_bert = family == EncoderFamily::kBert;
    spec = {.family = family,
            .layers = 2,
            .width = width,
            .heads = 4,
            .inner_width = 2 * width,
            .positions = 24,
            .token_types = is_bert ? 2 : 0};
    std::string vocab = "[PAD]\n[UNK]\n[CLS]\n[SEP]\nname\nwrite\n";
    spec.vocabulary = 6;
    for (char c = 'a'; c <= 'z'; ++c, spec.vocabulary += 2)
      vocab += fmt::format("{}\n##{}\n", c, c);
    folder_.write("vocab.txt", vocab);
    write_config(is_bert ? "bert" : "distilbert");
    add_tensors(family);
    write_weights(prefix);
  }

  const std::filesystem::path& path() const { return folder_.path(); }
  const TempFolder& folder() const { return folder_; }

  void write_config(const std::string& model_type) const {
    const bool is_bert = spec.family == EncoderFamily::kBert;
    folder_.write(
        "config.json",
        fmt::format(R"({{"model_type":"{}","{}":{},"{}":{},"{}":{},"{}":{},"vocab_size":{},)"
                    R"("max_position_embeddings":{},"{}":"gelu"}})",
                    model_type, is_bert ? "num_hidden_layers" : "n_layers", spec.layers,
                    is_bert ? "hidden_size" : "dim", spec.width,
                    is_bert ? "num_attention_heads" : "n_heads", spec.heads,
                    is_bert ? "intermediate_size" : "hidden_dim", spec.inner_width, spec.vocabulary,
                    spec.positions, is_bert ? "hidden_act" : "activation"));
  }
  void write_weights(const std::string& prefix = "") const {
    SafetensorsWriter writer;
    for (const auto& [name, values] : tensors)
      writer.add_tensor(prefix + name, "F32", shapes.at(name), std::as_bytes(std::span(values)));
    writer.write(path() / "model.safetensors");
  }

  EncoderSpec spec;
  std::map<std::string, std::vector<float>> tensors;
  std::map<std::string, std::vector<int64_t>> shapes;

 private:
  void add(const std::string& name, const std::vector<int64_t>& shape, float mean, float spread) {
    int64_t count = 1;
    for (const int64_t size : shape) count *= size;
    std::vector<float> values;
    // No distribution of the standard library is used, so that the numbers are the same everywhere.
    for (int64_t i = 0; i < count; ++i) {
      const auto unit = static_cast<float>(random_() >> 8) / static_cast<float>(1 << 23) - 1;
      values.push_back(mean + spread * unit);
    }
    tensors[name] = std::move(values);
    shapes[name] = shape;
  }
  void add_linear(const std::string& name, int64_t rows, int64_t cols) {
    add(name + ".weight", {rows, cols}, 0, 2 / std::sqrt(static_cast<float>(cols)));
    add(name + ".bias", {rows}, 0, 0.3F);
  }
  void add_norm(const std::string& name) {
    add(name + ".weight", {spec.width}, 1, 0.3F);
    add(name + ".bias", {spec.width}, 0, 0.3F);
  }
  void add_tensors(EncoderFamily family) {
    const EncoderTableNames tables = encoder_table_names();
    add(tables.tokens + ".weight", {spec.vocabulary, spec.width}, 0, 1);
    add(tables.positions + ".weight", {spec.positions, spec.width}, 0, 1);
    if (spec.token_types > 0) add(tables.types + ".weight", {spec.token_types, spec.width}, 0, 1);
    add_norm(tables.norm);
    for (int64_t layer = 0; layer < spec.layers; ++layer) {
      const EncoderLayerNames names = encoder_layer_names(family, layer);
      for (const auto& name : {names.query, names.key, names.value, names.attention_out})
        add_linear(name, spec.width, spec.width);
      add_linear(names.up, spec.inner_width, spec.width);
      add_linear(names.down, spec.width, spec.inner_width);
      add_norm(names.attention_norm);
      add_norm(names.out_norm);
    }
  }

  TempFolder folder_;
  std::mt19937 random_{7};
};

}  // namespace spillway
