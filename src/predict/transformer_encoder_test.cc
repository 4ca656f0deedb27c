// SPDX-License-Identifier: Apache-2.0
#include "predict/transformer_encoder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "predict/test_encoder_folder.h"
#include "tests/test_machine.h"

namespace spillway {
namespace {

using testing::HasSubstr;

TransformerEncoder open(const std::filesystem::path& folder,
                        EncoderPrecision precision = EncoderPrecision::kFast) {
  return {std::make_unique<CpuDevice>(CpuDeviceOptions{.threads = 2}), folder, precision};
}

using Rows = std::vector<std::vector<double>>;

// Computes the same network in doubles, straight from its formulas.
class Reference {
 public:
  explicit Reference(const TestEncoderFolder& model) : model_(model) {}

  std::vector<double> embed(const std::vector<TokenId>& tokens) const {
    const EncoderSpec& spec = model_.spec;
    const EncoderTableNames tables = encoder_table_names();
    Rows x;
    for (size_t t = 0; t < tokens.size(); ++t) {
      x.push_back(row(tables.tokens, static_cast<size_t>(tokens[t])));
      add(x.back(), row(tables.positions, t));
      if (spec.token_types > 0) add(x.back(), row(tables.types, 0));
    }
    x = norm(x, tables.norm);
    for (int64_t i = 0; i < spec.layers; ++i) {
      const EncoderLayerNames names = encoder_layer_names(spec.family, i);
      const Rows seen =
          attention(linear(x, names.query), linear(x, names.key), linear(x, names.value));
      x = norm(sum(x, linear(seen, names.attention_out)), names.attention_norm);
      Rows inner = linear(x, names.up);
      for (auto& values : inner)
        for (double& v : values) v = v * (1 + std::erf(v / std::sqrt(2.0))) / 2;
      x = norm(sum(x, linear(inner, names.down)), names.out_norm);
    }
    std::vector<double> mean(x[0].size());
    for (const auto& values : x) add(mean, values);
    double squares = 0;
    for (const double v : mean) squares += v * v;
    for (double& v : mean) v /= std::sqrt(squares);
    return mean;
  }

 private:
  const std::vector<float>& tensor(const std::string& name) const {
    return model_.tensors.at(name);
  }
  std::vector<double> row(const std::string& table, size_t at) const {
    const auto begin =
        tensor(table + ".weight").begin() + static_cast<std::ptrdiff_t>(at) * model_.spec.width;
    return {begin, begin + model_.spec.width};
  }
  static void add(std::vector<double>& to, const std::vector<double>& from) {
    for (size_t i = 0; i < to.size(); ++i) to[i] += from[i];
  }
  static Rows sum(Rows a, const Rows& b) {
    for (size_t t = 0; t < a.size(); ++t) add(a[t], b[t]);
    return a;
  }
  Rows linear(const Rows& x, const std::string& name) const {
    const auto &w = tensor(name + ".weight"), &bias = tensor(name + ".bias");
    Rows out;
    for (const auto& values : x) {
      out.emplace_back(bias.begin(), bias.end());
      for (size_t n = 0; n < bias.size(); ++n)
        for (size_t k = 0; k < values.size(); ++k)
          out.back()[n] += values[k] * double{w[n * values.size() + k]};
    }
    return out;
  }
  Rows norm(Rows x, const std::string& name) const {
    const auto &w = tensor(name + ".weight"), &bias = tensor(name + ".bias");
    for (auto& values : x) {
      const auto size = static_cast<double>(values.size());
      double mean = 0, variance = 0;
      for (const double v : values) mean += v / size;
      for (const double v : values) variance += (v - mean) * (v - mean) / size;
      for (size_t i = 0; i < values.size(); ++i)
        values[i] =
            (values[i] - mean) / std::sqrt(variance + 1e-12) * double{w[i]} + double{bias[i]};
    }
    return x;
  }
  Rows attention(const Rows& q, const Rows& k, const Rows& v) const {
    const auto dim = static_cast<size_t>(model_.spec.head_dim());
    Rows out(q.size(), std::vector<double>(q[0].size()));
    for (size_t t = 0; t < q.size(); ++t) {
      for (size_t head = 0; head < q[t].size(); head += dim) {
        std::vector<double> weights;
        for (const auto& key : k) {
          double score = 0;
          for (size_t i = head; i < head + dim; ++i) score += q[t][i] * key[i];
          weights.push_back(std::exp(score / std::sqrt(static_cast<double>(dim))));
        }
        double total = 0;
        for (const double weight : weights) total += weight;
        for (size_t s = 0; s < v.size(); ++s)
          for (size_t i = head; i < head + dim; ++i) out[t][i] += weights[s] / total * v[s][i];
      }
    }
    return out;
  }

  const TestEncoderFolder& model_;
};

double largest_difference(const std::vector<float>& a, const std::vector<double>& b) {
  double most = a.size() == b.size() ? 0 : std::numeric_limits<double>::infinity();
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i)
    most = std::max(most, std::abs(double{a[i]} - b[i]));
  return most;
}

const std::string kTexts[] = {"", "name", "Write a poem.", "name every thing that is here twice"};

TEST(TransformerEncoderTest, IsTheNetworkOfItsFormulas) {
  for (const EncoderFamily family : {EncoderFamily::kBert, EncoderFamily::kDistilBert}) {
    for (const int64_t width : {32, 20}) {
      const TestEncoderFolder model(family, width);
      const TransformerEncoder encoder = open(model.path(), EncoderPrecision::kExact);
      for (const std::string& text : kTexts) {
        const auto expected = Reference(model).embed(encoder.tokens_of(text));
        EXPECT_LT(largest_difference(encoder.embed(text), expected), 1e-5) << text;
      }
    }
  }
}

TEST(TransformerEncoderTest, EightBitsAreNearIt) {
  const TestEncoderFolder model(EncoderFamily::kBert, 64);
  const TransformerEncoder exact = open(model.path(), EncoderPrecision::kExact),
                           fast = open(model.path());
  for (const std::string& text : kTexts) {
    const std::vector<float> close = exact.embed(text);
    EXPECT_LT(largest_difference(fast.embed(text), {close.begin(), close.end()}), 0.05);
  }
  EXPECT_NE(exact.digest(), fast.digest());
}

TEST(TransformerEncoderTest, AnEncoderInsideALargerModelIsFound) {
  const TestEncoderFolder bare, inside(EncoderFamily::kBert, 32, "bert.");
  EXPECT_EQ(open(bare.path()).embed("name"), open(inside.path()).embed("name"));
}

TEST(TransformerEncoderTest, OfALongPromptTheFirstTokensAreRead) {
  const TestEncoderFolder model;
  const TransformerEncoder encoder = open(model.path());
  std::string text = "write";
  while (text.size() < 100'000) text += " abc";
  const std::vector<TokenId> tokens = encoder.tokens_of(text);
  EXPECT_EQ(static_cast<int64_t>(tokens.size()), model.spec.positions);
  EXPECT_EQ(encoder.embed(text), encoder.embed(text.substr(0, 200)));
  EXPECT_NE(encoder.embed(text), encoder.embed("write abc"));
}

TEST(TransformerEncoderTest, ItsMemoryIsKnownBeforeItIsAsked) {
  const TestEncoderFolder model;
  auto device = std::make_unique<CpuDevice>(CpuDeviceOptions{.threads = 2});
  const CpuDevice& used = *device;
  const TransformerEncoder encoder(std::move(device), model.path());
  const uint64_t known = encoder.memory_bytes();
  EXPECT_GT(known, used.usage().of(MemoryTag::kWeights));
  std::string text;
  while (text.size() < 100'000) text += "write abc ";
  for (const size_t bytes : {size_t{1}, size_t{20}, text.size()})
    encoder.embed(text.substr(0, bytes));
  EXPECT_EQ(encoder.memory_bytes(), known);
  EXPECT_EQ(used.usage().total(), known) << "nothing is taken later";
}

TEST(TransformerEncoderTest, ManyThreadsGetWhatOneGets) {
  const TestEncoderFolder model;
  const TransformerEncoder encoder = open(model.path());
  std::vector<std::vector<float>> alone;
  for (const std::string& text : kTexts) alone.push_back(encoder.embed(text));
  std::vector<int> wrong(4);
  {
    std::vector<std::jthread> threads;
    for (size_t i = 0; i < wrong.size(); ++i) {
      threads.emplace_back([&, i] {
        for (int turn = 0; turn < 20; ++turn)
          wrong[i] += encoder.embed(kTexts[(i + turn) % 4]) == alone[(i + turn) % 4] ? 0 : 1;
      });
    }
  }
  EXPECT_THAT(wrong, testing::Each(0));
}

std::string complaint_of(const std::filesystem::path& folder) {
  return error_of([&] { open(folder); });
}

TEST(TransformerEncoderTest, WrongFoldersAreNamed) {
  const TempFolder empty;
  EXPECT_THAT(complaint_of(empty / "none"), HasSubstr("none does not exist"));
  EXPECT_THAT(complaint_of(empty.path()), HasSubstr("no config.json"));
  const TestEncoderFolder model;
  model.write_config("llama");
  EXPECT_THAT(complaint_of(model.path()), HasSubstr("model_type is llama; an encoder"));
  model.write_config("bert");
  std::filesystem::remove(model.path() / "vocab.txt");
  EXPECT_THAT(complaint_of(model.path()), HasSubstr("neither tokenizer.json nor vocab.txt"));
}

TEST(TransformerEncoderTest, DamagedWeightsAreNamed) {
  TestEncoderFolder model;
  const std::string name = encoder_layer_names(EncoderFamily::kBert, 1).up + ".weight";
  model.tensors[name][3] = std::numeric_limits<float>::quiet_NaN();
  model.write_weights();
  EXPECT_THAT(complaint_of(model.path()), HasSubstr(name + " has values that are no numbers"));
  model.shapes[name] = {model.spec.width, model.spec.inner_width};
  model.write_weights();
  EXPECT_THAT(complaint_of(model.path()), HasSubstr(name + " is [32, 64], config.json makes it"));
  model.tensors.erase(name);
  model.write_weights();
  EXPECT_THAT(complaint_of(model.path()), HasSubstr(name));
  model.folder().write("model.safetensors", "short");
  EXPECT_THAT(complaint_of(model.path()), HasSubstr("model.safetensors"));
}

TEST(TransformerEncoderTest, ATokenizerOfAnotherModelIsRefused) {
  const TestEncoderFolder model;
  std::string vocab = "[UNK]\n[CLS]\n[SEP]\n";
  for (int i = 0; i < 100; ++i) vocab += std::to_string(i) + "\n";
  model.folder().write("vocab.txt", vocab);
  EXPECT_THAT(complaint_of(model.path()), HasSubstr("not of one model"));
}

TEST(TransformerEncoderTest, TheDigestTellsEncodersApart) {
  TestEncoderFolder model;
  const std::string before = open(model.path()).digest();
  EXPECT_EQ(open(model.path()).digest(), before);
  model.tensors.begin()->second[0] += 1;
  model.write_weights();
  const std::string other_weights = open(model.path()).digest();
  EXPECT_NE(other_weights, before);
  model.spec.heads = 8;
  model.write_config("bert");
  EXPECT_NE(open(model.path()).digest(), other_weights);
}

}  // namespace
}  // namespace spillway
