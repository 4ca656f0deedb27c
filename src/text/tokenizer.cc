// SPDX-License-Identifier: Apache-2.0
#include "text/tokenizer.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "text/added_tokens.h"
#include "text/byte_alphabet.h"
#include "text/byte_bpe.h"
#include "text/sentence_piece.h"
#include "text/token_index.h"

namespace spillway {
namespace {

constexpr size_t kMaxTextBytes = size_t{512}
                                 << 20;  // positions have 32 bits, and a space becomes three bytes

constexpr std::array<std::string_view, 8> kEndOfTurnNames = {
    "<|im_end|>",    "<|eot_id|>",    "<|eom_id|>", "<|end_of_text|>",
    "<|endoftext|>", "<end_of_turn>", "<|end|>",    "<EOT>"};

bool is_special(const VocabToken& token) {
  return token.kind == TokenKind::kControl || token.kind == TokenKind::kUnknown;
}

std::string piece_of(const VocabToken& token, TokenizerModel model) {
  if (is_special(token)) return {};
  if (token.kind == TokenKind::kByte) {
    const auto byte = try_parse_byte_token(token.text);
    return byte ? std::string(1, static_cast<char>(*byte)) : token.text;
  }
  if (model == TokenizerModel::kByteLevelBpe) {
    if (token.kind == TokenKind::kUserDefined) return token.text;
    return try_spelled_bytes(token.text).value_or(token.text);
  }
  std::string text;
  for (size_t i = 0; i < token.text.size();) {
    if (token.text.compare(i, kSpaceSymbol.size(), kSpaceSymbol) == 0) {
      text.push_back(' ');
      i += kSpaceSymbol.size();
    } else {
      text.push_back(token.text[i++]);
    }
  }
  return text;
}

std::vector<TokenId> end_of_generation_of(const Vocabulary& vocabulary, const TokenIndex& index) {
  std::vector<TokenId> ids = vocabulary.end_of_generation;
  if (vocabulary.eos) ids.push_back(*vocabulary.eos);
  if (vocabulary.eot) ids.push_back(*vocabulary.eot);
  for (std::string_view name : kEndOfTurnNames) {
    const TokenId id = index.find(name);
    if (id != kNoToken && is_special(vocabulary.tokens[static_cast<size_t>(id)])) ids.push_back(id);
  }
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return ids;
}

}  // namespace

struct Tokenizer::Impl {
  explicit Impl(Vocabulary given)
      : vocabulary((validate(given), std::move(given))),
        index(vocabulary.tokens),
        added_tokens(vocabulary.tokens),
        end_of_generation(end_of_generation_of(vocabulary, index)) {
    if (vocabulary.model == TokenizerModel::kByteLevelBpe)
      encoder = std::make_unique<ByteBpe>(vocabulary, index);
    else
      encoder = std::make_unique<SentencePiece>(vocabulary, index);
    pieces.reserve(vocabulary.tokens.size());
    for (const VocabToken& token : vocabulary.tokens)
      pieces.push_back(piece_of(token, vocabulary.model));
  }

  bool exists(TokenId id) const { return id >= 0 && static_cast<size_t>(id) < pieces.size(); }

  std::vector<TokenId> encode(std::string_view text, std::span<const TextRange> special_ranges,
                              bool add_special) const {
    SPW_CHECK(text.size() <= kMaxTextBytes, kInvalidArgument,
              "a text of {} bytes is too long to tokenize (limit {})", text.size(), kMaxTextBytes);
    std::vector<TokenId> ids;
    if (add_special && vocabulary.add_bos) ids.push_back(*vocabulary.bos);
    encoder->encode(added_tokens.split(text, special_ranges), ids);
    if (add_special && vocabulary.add_eos) ids.push_back(*vocabulary.eos);
    return ids;
  }

  const Vocabulary vocabulary;
  const TokenIndex index;
  const AddedTokens added_tokens;
  const std::vector<TokenId> end_of_generation;
  std::unique_ptr<TextEncoder> encoder;
  std::vector<std::string> pieces;
};

Tokenizer::Tokenizer(Vocabulary vocabulary)
    : impl_(std::make_unique<const Impl>(std::move(vocabulary))) {}
Tokenizer::~Tokenizer() = default;
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;

std::vector<TokenId> Tokenizer::encode(std::string_view text, EncodeOptions options) const {
  const TextRange everything{.begin = 0, .end = text.size()};
  return impl_->encode(text, std::span(&everything, options.parse_special ? 1 : 0),
                       options.add_special);
}

std::vector<TokenId> Tokenizer::encode_segments(std::span<const TextSegment> segments,
                                                EncodeOptions options) const {
  std::string text;
  std::vector<TextRange> special_ranges;
  for (const TextSegment& segment : segments) {
    const size_t begin = text.size();
    text.append(segment.text);
    if (segment.is_marker) special_ranges.push_back({.begin = begin, .end = text.size()});
  }
  return impl_->encode(text, special_ranges, options.add_special);
}

std::string_view Tokenizer::piece(TokenId id) const {
  return impl_->exists(id) ? std::string_view(impl_->pieces[static_cast<size_t>(id)])
                           : std::string_view();
}

std::string_view Tokenizer::spelling(TokenId id) const {
  return impl_->exists(id) ? std::string_view(vocabulary().tokens[static_cast<size_t>(id)].text)
                           : std::string_view();
}

std::string Tokenizer::decode(std::span<const TokenId> ids, DecodeOptions options) const {
  std::string text;
  for (TokenId id : ids) {
    const bool special =
        impl_->exists(id) && is_special(vocabulary().tokens[static_cast<size_t>(id)]);
    text.append(special && options.keep_special ? spelling(id) : piece(id));
  }
  if (strips_leading_space() && !options.continues && text.starts_with(' ')) text.erase(0, 1);
  return text;
}

std::optional<TokenId> Tokenizer::try_find(std::string_view text) const {
  const TokenId id = impl_->index.find(text);
  return id == kNoToken ? std::nullopt : std::optional(id);
}

const Vocabulary& Tokenizer::vocabulary() const { return impl_->vocabulary; }

bool Tokenizer::is_end_of_generation(TokenId id) const {
  return std::binary_search(impl_->end_of_generation.begin(), impl_->end_of_generation.end(), id);
}

std::span<const TokenId> Tokenizer::end_of_generation() const { return impl_->end_of_generation; }

bool Tokenizer::strips_leading_space() const {
  return vocabulary().model == TokenizerModel::kSentencePiece && vocabulary().add_space_prefix;
}

}  // namespace spillway
