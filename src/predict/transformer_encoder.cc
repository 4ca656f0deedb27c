// SPDX-License-Identifier: Apache-2.0
#include "predict/transformer_encoder.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <span>
#include <utility>

#include "base/digest.h"
#include "base/error.h"
#include "storage/hf_folder.h"
#include "tensor/kv_format.h"
#include "text/word_piece_files.h"

namespace spillway {
namespace {

// The most bytes of a tokenizer.json or vocab.txt.
constexpr uint64_t kMaxTokenizerBytes = uint64_t{32} << 20;
// Only this much of a text is tokenized: the limit on tokens alone would not bound the time, since
// one word may be very long.
constexpr size_t kMaxEncodedBytes = size_t{16} << 10;

WordPieceVocabulary read_vocabulary(const ModelFiles& files) {
  if (const auto json = files.try_read_text("tokenizer.json", kMaxTokenizerBytes))
    return word_piece_from_tokenizer_json(*json, files.name);
  const auto vocab = files.try_read_text("vocab.txt", kMaxTokenizerBytes);
  SPW_CHECK(vocab.has_value(), kInvalidArgument,
            "{}: neither tokenizer.json nor vocab.txt; an encoder needs its tokenizer", files.name);
  return word_piece_from_vocab_txt(
      *vocab, files.try_read_text("tokenizer_config.json").value_or(""), files.name);
}

// Computes the digest of all that decides an embedding.
std::string digest_of(const EncoderSpec& spec, const WordPieceVocabulary& vocabulary,
                      const std::string& weights, EncoderPrecision precision) {
  Digest digest;
  digest.add(fmt::format("{} {} {} {}\n", spec.heads, static_cast<int>(spec.activation),
                         spec.norm_eps, kMostEncoderTokens));
  for (const std::string& piece : vocabulary.pieces) digest.add(piece + "\n");
  const BertWordRules& rules = vocabulary.words;
  for (const bool on : {rules.clean, rules.split_ideographs, rules.strip_accents, rules.lowercase,
                        precision == EncoderPrecision::kFast})
    digest.add(on ? "+" : "-");
  digest.add(weights);
  return digest.digits();
}

}  // namespace

// Working memory of a pass of at most `most` tokens.
struct TransformerEncoder::Scratch {
  Scratch(Device& device, const EncoderSpec& spec, int64_t most)
      : rows(most),
        x(activations(device, spec.width)),
        q(activations(device, spec.width)),
        k(activations(device, spec.width)),
        v(activations(device, spec.width)),
        out(activations(device, spec.width)),
        inner(activations(device, spec.inner_width)),
        zeros(static_cast<size_t>(most)),
        positions(static_cast<size_t>(most)),
        blocks(static_cast<size_t>(blocks_for_tokens(most))) {
    std::iota(positions.begin(), positions.end(), 0);
    std::iota(blocks.begin(), blocks.end(), 0);
    kv = {.type = KvType::kF32,
          .blocks = static_cast<int64_t>(blocks.size()),
          .kv_heads = static_cast<int>(spec.heads),
          .head_dim = static_cast<int>(spec.head_dim())};
    const auto bytes = static_cast<size_t>(kv.blocks * kv.block_bytes());
    memory.push_back(device.allocate(bytes, MemoryTag::kWorkspace));
    kv.k = memory.back().data();
    memory.push_back(device.allocate(bytes, MemoryTag::kWorkspace));
    kv.v = memory.back().data();
  }

  Activations activations(Device& device, int64_t cols) {
    memory.push_back(
        device.allocate(static_cast<size_t>(rows * cols) * sizeof(float), MemoryTag::kWorkspace));
    return {DType::kF32, rows, cols, cols, memory.back().data()};
  }

  int64_t rows;
  std::vector<Buffer> memory;
  Activations x, q, k, v, out, inner;
  std::vector<int32_t> zeros, positions, blocks;
  KvLayerView kv;
  // One span for each token, at the last position, so that causal attention lets every token see
  // all others.
  std::vector<SequenceSpan> spans;
};

TransformerEncoder::TransformerEncoder(std::unique_ptr<Device> device,
                                       const std::filesystem::path& folder,
                                       EncoderPrecision precision)
    : folder_(std::filesystem::absolute(folder)), device_(std::move(device)) {
  SPW_ASSERT(device_->host_visible());
  const ModelFiles files = read_hf_folder(folder);
  spec_ = read_encoder_spec(files.metadata, files.name);
  const WordPieceVocabulary vocabulary = read_vocabulary(files);
  pieces_ = std::make_unique<WordPiece>(vocabulary);
  SPW_CHECK(static_cast<int64_t>(pieces_->size()) <= spec_.vocabulary, kInvalidArgument,
            "{}: its tokenizer has {} tokens, config.json says {}; they are not of one model",
            files.name, pieces_->size(), spec_.vocabulary);
  weights_ = std::make_unique<EncoderWeights>(*device_, files, spec_, precision);
  digest_ = digest_of(spec_, vocabulary, weights_->digest, precision);
  // Deterministic kernels do not round activations, so that a pass is as exact as its weights.
  device_->ops().set_deterministic(precision == EncoderPrecision::kExact);
  const auto most = std::min<int64_t>(spec_.positions, kMostEncoderTokens);
  scratch_ = std::make_unique<Scratch>(*device_, spec_, most);
  // Kernels keep their workspace from call to call: after the longest pass memory_bytes_ has all of
  // it.
  std::string longest;
  for (int64_t i = 0; i < most; ++i) longest += "a ";
  embed(longest);
  memory_bytes_ = device_->usage().total();
}

TransformerEncoder::~TransformerEncoder() = default;

std::vector<TokenId> TransformerEncoder::tokens_of(std::string_view text) const {
  return pieces_->encode(text.substr(0, kMaxEncodedBytes), static_cast<size_t>(scratch_->rows));
}

void TransformerEncoder::run_layers(int64_t tokens) const {
  Ops& ops = device_->ops();
  const Scratch& s = *scratch_;
  const auto some = [&](const Activations& all) { return all.row_range(0, tokens); };
  const Activations x = some(s.x), q = some(s.q), k = some(s.k), v = some(s.v);
  const Activations out = some(s.out), inner = some(s.inner);
  const SequenceSpan all{.rows = static_cast<int32_t>(tokens), .block_table = s.blocks};
  const AttentionParams attention{.heads = static_cast<int>(spec_.heads),
                                  .scale = 1 / std::sqrt(static_cast<float>(spec_.head_dim()))};
  const auto normalize = [&](const EncoderLinear& norm) {
    ops.norm(NormKind::kLayer, x, norm.weight, norm.bias, spec_.norm_eps, x);
  };
  normalize(weights_->norm);
  for (const EncoderLayer& layer : weights_->layers) {
    const Projection parts[] = {{layer.query.weight, layer.query.bias, q},
                                {layer.key.weight, layer.key.bias, k},
                                {layer.value.weight, layer.value.bias, v}};
    ops.linears(parts, x);
    ops.kv_append(k, v, s.kv, {&all, 1});
    ops.attention(q, s.kv, s.spans, attention, out);
    ops.linear(layer.attention_out.weight, layer.attention_out.bias, out, x,
               LinearMode::kAccumulate);
    normalize(layer.attention_norm);
    ops.activated_linear(spec_.activation, {layer.up.weight, layer.up.bias, inner}, x);
    ops.linear(layer.down.weight, layer.down.bias, inner, x, LinearMode::kAccumulate);
    normalize(layer.out_norm);
  }
}

std::vector<float> TransformerEncoder::embed(std::string_view text) const {
  const std::vector<TokenId> tokens = tokens_of(text);
  const auto count = static_cast<int64_t>(tokens.size());
  const std::lock_guard lock(mutex_);
  Scratch& s = *scratch_;
  s.spans.clear();
  for (int32_t row = 0; row < count; ++row) {
    s.spans.push_back({.first_row = row,
                       .rows = 1,
                       .start = static_cast<int32_t>(count - 1),
                       .block_table = s.blocks});
  }
  Ops& ops = device_->ops();
  const Activations x = s.x.row_range(0, count);
  ops.embed(weights_->tokens, tokens, x, LinearMode::kStore);
  const auto first = [&](const std::vector<int32_t>& all) {
    return std::span(all).first(tokens.size());
  };
  ops.embed(weights_->positions, first(s.positions), x, LinearMode::kAccumulate);
  if (!weights_->types.empty())
    ops.embed(weights_->types, first(s.zeros), x, LinearMode::kAccumulate);
  run_layers(count);

  std::vector<float> sums(static_cast<size_t>(spec_.width));
  for (int64_t row = 0; row < count; ++row) {
    const float* const values = x.f32(row);
    for (size_t i = 0; i < sums.size(); ++i) sums[i] += values[i];
  }
  double squares = 0;
  for (const float sum : sums) squares += double{sum} * double{sum};
  const double length = std::sqrt(squares);
  // Values that are not finite must not reach the predictor, which would learn them.
  if (!std::isfinite(length) || length == 0) return std::vector<float>(sums.size());
  for (float& sum : sums) sum = static_cast<float>(sum / length);
  return sums;
}

}  // namespace spillway
