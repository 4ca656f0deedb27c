// SPDX-License-Identifier: Apache-2.0
// How keys and values lie in the pages of the KV cache.
//
// A page is 16 tokens of one kv head, contiguous, so that it can be moved and attended to by
// itself; a token is written without touching the others.
//
//   F32, F16, BF16   [16][head_dim]
//   int8       scale [groups][16] F16, then codes of head_dim bytes per token:
//              x = scale * code, -127 to 127
//   int4       scale [groups][16] F16, min [groups][16] F16, then codes of head_dim / 2 bytes per
//              token: x = min + scale * code, 0 to 15 (FlexGen, section 4: asymmetric, groups of
//              64)
//
// int4 keeps keys and values rotated: rotate_kv() of each row (after QuaRot, section 4). The few
// large elements that a row has are spread over the group, which halves the error of keys and
// takes a quarter off that of values. Scores do not change when queries are rotated as well; a
// weighted sum of rotated values is the rotated sum, which whoever attends rotates back.
//
// Codes of keys are [16 tokens][bytes]. Those of values are [bytes / 2][2][2 bytes][8 tokens]: what
// is summed over lies together, and 16 bytes are two rows of 8, as matrix instructions want them.
//
// A group is 64 elements of a head, the last of a row may be shorter. Scales of 16 tokens lie
// together: a vector of them multiplies a vector of scores, and they fill whole 32-byte sectors, so
// that rows of codes start at 16-byte boundaries wherever their own size allows. In a group of n
// elements, byte i of int4 codes has element i in its low half and element n / 2 + i in its high
// half: 32 bytes unpack to two runs of 32 without a shuffle.
//
// Why a scale per 64 for int8 as well: one F16 per 64 codes is 3% more bytes, and a row of 128 with
// one outlier keeps its other half precise.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "base/checked_math.h"

namespace spillway {

inline constexpr int kKvBlockTokens = 16;
inline constexpr int64_t kKvGroup = 64;  // elements that share a scale

enum class KvType : uint8_t { kF32, kF16, kBf16, kInt8, kInt4 };
inline constexpr KvType kAllKvTypes[] = {KvType::kF32, KvType::kF16, KvType::kBf16, KvType::kInt8,
                                         KvType::kInt4};

enum class KvPart : uint8_t { kKeys, kValues };

std::string_view kv_type_name(KvType type);
[[nodiscard]] std::optional<KvType> try_kv_type_from_name(std::string_view name);

constexpr bool is_quantized(KvType type) { return type >= KvType::kInt8; }
// Elements of two bytes, as they are.
constexpr bool is_half(KvType type) { return type == KvType::kF16 || type == KvType::kBf16; }
// Quantized types take multiples of 8 up to 256, the others any size.
constexpr bool kv_type_supports(KvType type, int64_t head_dim) {
  return head_dim > 0 && (!is_quantized(type) || (head_dim % 8 == 0 && head_dim <= 256));
}

// Where things are in a page.
struct KvPageLayout {
  constexpr KvPageLayout(KvType kv_type, int64_t dim)
      : type(kv_type),
        head_dim(dim),
        groups(is_quantized(kv_type) ? (dim + kKvGroup - 1) / kKvGroup : 0),
        mins_at(2 * groups * kKvBlockTokens),
        codes_at(kv_type == KvType::kInt4 ? 2 * mins_at : mins_at),
        row_bytes(kv_type == KvType::kF32    ? 4 * dim
                  : is_half(kv_type)         ? 2 * dim
                  : kv_type == KvType::kInt8 ? dim
                                             : dim / 2),
        bytes(codes_at + kKvBlockTokens * row_bytes) {}

  constexpr int64_t group_size(int64_t group) const {
    const int64_t left = head_dim - group * kKvGroup;
    return left < kKvGroup ? left : kKvGroup;
  }

  // Of byte `byte` of token `token`.
  constexpr int64_t code_at(KvPart part, int64_t token, int64_t byte) const {
    if (part == KvPart::kKeys || !is_quantized(type)) return codes_at + token * row_bytes + byte;
    return codes_at + byte / 2 * 32 + token / 8 * 16 + byte % 2 * 8 + token % 8;
  }

  KvType type;
  int64_t head_dim;
  int64_t groups;
  int64_t mins_at;   // bytes from the page's start; the scales are at 0
  int64_t codes_at;  // of token 0
  int64_t row_bytes;
  int64_t bytes;
};

constexpr bool is_rotated(KvType type) { return type == KvType::kInt4; }
// x [head_dim], in place: the orthonormal Walsh-Hadamard transform of runs of the largest power of
// two that divides the group's size. Its own inverse, up to rounding.
void rotate_kv(float* x, int64_t head_dim);

// Bytes of one page: 16 tokens of one kv head.
constexpr int64_t kv_page_bytes(KvType type, int64_t head_dim) {
  return KvPageLayout(type, head_dim).bytes;
}

// Of the whole cache.
struct KvShape {
  int layers = 0;
  int kv_heads = 0;
  int head_dim = 0;
  KvType type = KvType::kF16;

  // K and V of one block of 16 tokens, over all layers; and one of these in one layer.
  constexpr int64_t block_bytes() const { return 2 * layers * plane_block_bytes(); }
  constexpr int64_t plane_block_bytes() const { return kv_heads * kv_page_bytes(type, head_dim); }
  bool operator==(const KvShape&) const = default;
};
// Blocks that `tokens` tokens take.
constexpr int64_t blocks_for_tokens(int64_t tokens) {
  return ceil_div<int64_t>(tokens, kKvBlockTokens);
}

// What a page cannot hold is NaN in it, so that nobody who attends to it gets a number: an element
// of F32, F16 or BF16 is that NaN, a group of int8 or int4 has it as its scale (and minimum) and
// codes 0. It is that for what is not finite, for an element that F16 or BF16 would round to
// infinity, and for a group whose scale or minimum F16 would.
enum class KvStored : uint8_t { kWell, kBeyondRange, kNotFinite };
inline constexpr uint16_t kKvNanHalf = 0x7e00;
inline constexpr uint32_t kKvNanFloat = 0x7fc00000;
inline constexpr float kKvHalfEnd = 65520;  // numbers below it are rounded to finite halves
inline constexpr uint16_t kKvNanBf16 = 0x7fc0;
inline constexpr float kKvBf16End = 0x1.ffp127F;  // the same for BF16

// The reference: what every device stores for x [head_dim] as token `token` of a page, bit for bit,
// and what it reads back. Scales are rounded to F16 before codes are chosen. Returns the worst that
// was met.
KvStored store_kv_reference(const KvPageLayout& layout, KvPart part, const float* x,
                            std::byte* page, int token);
void load_kv_reference(const KvPageLayout& layout, KvPart part, const std::byte* page, int token,
                       float* x);

}  // namespace spillway
