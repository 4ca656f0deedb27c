// SPDX-License-Identifier: Apache-2.0
#include "bench/random_model.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "model/family.h"
#include "storage/gguf_convert.h"
#include "storage/type_mix.h"
#include "tensor/random_fill.h"

namespace spillway {
namespace {

constexpr int kSpecialPieces = 3, kBytePieces = 256;

// Returns piece `index` of all strings over 27 letters, in order of length. Pieces are distinct,
// and each is two other pieces joined, as SentencePiece merges require.
std::string made_up_piece(int64_t index) {
  constexpr const char* kLetters[] = {"\u2581", "a", "b", "c", "d", "e", "f", "g", "h",
                                      "i",      "j", "k", "l", "m", "n", "o", "p", "q",
                                      "r",      "s", "t", "u", "v", "w", "x", "y", "z"};
  std::string piece;
  for (int64_t rest = index + 1; rest > 0; rest = (rest - 1) / 27) {
    piece.insert(0, kLetters[(rest - 1) % 27]);
  }
  return piece;
}

void add_vocabulary(GgufWriter& file, int64_t size) {
  SPW_CHECK(size > kSpecialPieces + kBytePieces, kInvalidArgument,
            "a vocabulary of {} has no room for the {} special and byte tokens", size,
            kSpecialPieces + kBytePieces);
  constexpr int32_t kNormal = 1, kUnknown = 2, kControl = 3, kByte = 6;
  std::vector<std::string> pieces{"<unk>", "<s>", "</s>"};
  std::vector<int32_t> types{kUnknown, kControl, kControl};
  for (int byte = 0; byte < kBytePieces; ++byte) {
    pieces.push_back(fmt::format("<0x{:02X}>", byte));
    types.push_back(kByte);
  }
  for (int64_t i = 0; std::ssize(pieces) < size; ++i) {
    pieces.push_back(made_up_piece(i));
    types.push_back(kNormal);
  }
  std::vector<float> scores;
  for (size_t i = 0; i < pieces.size(); ++i) {
    scores.push_back(types[i] == kNormal ? -static_cast<float>(i) : 0.0F);
  }
  file.add("tokenizer.ggml.model", "llama");
  file.add("tokenizer.ggml.pre", "default");
  file.add("tokenizer.ggml.tokens", StringArray(pieces));
  file.add_floats("tokenizer.ggml.scores", scores);
  file.add_ints("tokenizer.ggml.token_type", types);
  file.add_u32("tokenizer.ggml.unknown_token_id", 0);
  file.add_u32("tokenizer.ggml.bos_token_id", 1);
  file.add_u32("tokenizer.ggml.eos_token_id", 2);
}

void add_metadata(GgufWriter& file, const TransformerShape& shape) {
  file.add("general.architecture", "llama");
  file.add("general.name", shape.name + ", random weights");
  file.add_u32("general.quantization_version", 2);
  Metadata keys("random model");
  kLlamaFamily.write_gguf_keys(shape, keys);
  copy_gguf_metadata(keys, file);
}

// Llama 3.1 and later store scaled frequencies as divisors of the plain ones.
void add_rope_divisors(GgufWriter& file, const TransformerShape& shape) {
  const auto plain = base_inverse_frequencies(shape.rope);
  std::vector<float> divisors;
  for (size_t i = 0; i < plain.size(); ++i) {
    divisors.push_back(static_cast<float>(plain[i] / double{shape.rope.inverse_frequencies[i]}));
  }
  const auto scaled = [](float divisor) { return std::abs(divisor - 1) > 1e-4F; };
  if (std::none_of(divisors.begin(), divisors.end(), scaled)) return;
  file.add_tensor("rope_freqs.weight", DType::kF32, {std::ssize(divisors)},
                  std::as_bytes(std::span(divisors)));
}

// Fills any range of a tensor's bytes. They consist of pieces of whole blocks, each taken from its
// own place in the pattern.
void fill_bytes(const RandomPattern& pattern, DType type, uint64_t tensor, uint64_t offset,
                std::span<std::byte> out) {
  constexpr int64_t kPieceBlocks = 1024;
  const DTypeInfo& info = dtype_info(type);
  const auto piece_bytes = static_cast<uint64_t>(kPieceBlocks * info.block_bytes);
  std::vector<std::byte> piece(piece_bytes);
  while (!out.empty()) {
    const uint64_t index = offset / piece_bytes, skip = offset % piece_bytes;
    pattern.fill(piece.data(), kPieceBlocks * info.block_elements, tensor * 4099 + index * 1021);
    const size_t count = std::min<size_t>(out.size(), piece_bytes - skip);
    std::memcpy(out.data(), piece.data() + skip, count);
    out = out.subspan(count);
    offset += count;
  }
}

// Keeps one pattern per type and deviation, shared by all tensors that have both.
class Patterns {
 public:
  std::shared_ptr<const RandomPattern> get(DType type, int64_t fan_in) {
    auto& pattern = patterns_[{type, fan_in}];
    if (!pattern) {
      const auto deviation = static_cast<float>(0.7 / std::sqrt(static_cast<double>(fan_in)));
      pattern = std::make_shared<const RandomPattern>(type, patterns_.size(), deviation);
    }
    return pattern;
  }

 private:
  std::map<std::pair<DType, int64_t>, std::shared_ptr<const RandomPattern>> patterns_;
};

void fill_ones(std::span<std::byte> out) {
  const float one = 1;
  for (size_t i = 0; i < out.size(); i += sizeof(one)) std::memcpy(&out[i], &one, sizeof(one));
}

}  // namespace

DType RandomMix::of(const WeightSlot& slot, const TransformerShape& shape) const {
  if (slot.is_vector()) return DType::kF32;
  DType type = main;
  if (more_bits_for_some) {
    const bool is_head = slot.name == "head" || (slot.name == "token_embedding" && shape.tied_head);
    const bool is_sensitive = slot.name == "value" || slot.name == "mlp_down";
    if (is_head || (is_sensitive && deserves_more_bits(slot.layer, shape.layers))) {
      type = DType::kQ6_K;
    }
  }
  return type_that_fits(type, slot.cols);
}

std::optional<RandomMix> try_random_mix(std::string_view name) {
  if (const auto type = try_dtype_from_name(name)) return RandomMix{*type, false};
  if (const auto mix = try_type_mix(name)) return RandomMix{mix->main, mix->more_bits_for_some};
  return std::nullopt;
}

GgufWriter random_model(const TransformerShape& shape, const RandomMix& mix,
                        std::function<void(uint64_t done, uint64_t total)> progress) {
  SPW_CHECK(shape.family == "llama", kUnsupported,
            "{} is of the family '{}'; only llama has a GGUF form here", shape.name, shape.family);
  GgufWriter file;
  add_metadata(file, shape);
  add_vocabulary(file, shape.vocab_size);
  add_rope_divisors(file, shape);

  const ModelSpec spec = make_spec(shape);
  const std::vector<WeightSlot> slots = weight_slots(spec);
  uint64_t total = 0;
  for (const WeightSlot& slot : slots) {
    total += static_cast<uint64_t>(slot.rows * row_bytes(mix.of(slot, shape), slot.cols));
  }
  const auto done = std::make_shared<uint64_t>(0);
  const auto names = kLlamaFamily.names(ModelFiles{});  // the names in GGUF files
  Patterns patterns;
  for (size_t i = 0; i < slots.size(); ++i) {
    const WeightSlot& slot = slots[i];
    const DType type = mix.of(slot, shape);
    GgufWriter::Fill fill;
    if (slot.is_vector()) {
      fill = [](uint64_t, std::span<std::byte> out) { fill_ones(out); };
    } else {
      fill = [pattern = patterns.get(type, slot.cols), type, i](uint64_t offset,
                                                                std::span<std::byte> out) {
        fill_bytes(*pattern, type, i, offset, out);
      };
    }
    const auto counted = [fill, done, total, progress](uint64_t offset, std::span<std::byte> out) {
      fill(offset, out);
      *done += out.size();
      if (progress) progress(*done, total);
    };
    const auto dims = slot.is_vector() ? std::vector<int64_t>{slot.cols}
                                       : std::vector<int64_t>{slot.rows, slot.cols};
    file.add_tensor(place_of(names, spec, slot).name, type, dims, counted);
  }
  return file;
}

}  // namespace spillway
