// SPDX-License-Identifier: Apache-2.0
#include "tensor/random_fill.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "tensor/dequantize.h"
#include "tensor/half.h"
#include "tensor/quant_blocks.h"

namespace spillway {
namespace {

// SplitMix64: small, fast, and the same everywhere (std distributions differ between libraries).
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t next() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15U);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9U;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebU;
    return z ^ (z >> 31);
  }
  // Uniform in (-1, 1); its standard deviation is 1 / sqrt(3).
  float uniform() { return (static_cast<float>(next() >> 40) + 0.5F) * 0x1p-23F - 1.0F; }

 private:
  uint64_t state_;
};

template <class Block>
void random_bytes(Random& random, Block& block) {
  auto* bytes = reinterpret_cast<uint8_t*>(&block);
  for (size_t i = 0; i < sizeof(Block); i += 8) {
    const uint64_t word = random.next();
    std::memcpy(bytes + i, &word, std::min<size_t>(8, sizeof(Block) - i));
  }
}

// K blocks get random bits, then scales that give uniform levels the wanted deviation. The divisor
// of `deviation` is the standard deviation of a decoded element for d = 1 (with dmin chosen to
// center it).
void scale_block(BlockQ2_K& b, float deviation) {
  std::fill(std::begin(b.scales), std::end(b.scales), uint8_t{2 | (3 << 4)});  // 2 q - 3: -3 -1 1 3
  b.d = b.dmin = to_half(deviation / 2.236F);
}
void scale_block(BlockQ3_K& b, float deviation) {
  // Scales alternate between 33 and 31, which gives +d (q - 4) and -d (q - 4), so that the uneven
  // range -4..3 averages out.
  for (int i = 0; i < 8; ++i) b.scales[i] = i % 2 == 0 ? 0x11 : 0xff;
  for (int i = 8; i < 12; ++i) b.scales[i] = i % 2 == 0 ? 0xaa : 0x55;
  b.d = to_half(deviation / 2.345F);
}
template <class Block>
void scale_k45(Block& b, int top, float deviation) {
  // Scale 2 and minimum `top` give 2 q - top.
  for (int i = 0; i < 4; ++i) {
    b.scales[i] = 2;
    b.scales[i + 4] = static_cast<uint8_t>(top | ((top >> 4) << 6));
    b.scales[i + 8] = static_cast<uint8_t>(2 | ((top & 15) << 4));
  }
  b.d = b.dmin = to_half(deviation / (static_cast<float>(top + 1) / 1.732F));
}
void scale_block(BlockQ4_K& b, float deviation) { scale_k45(b, 15, deviation); }
void scale_block(BlockQ5_K& b, float deviation) { scale_k45(b, 31, deviation); }
void scale_block(BlockQ6_K& b, float deviation) {
  std::fill(std::begin(b.scales), std::end(b.scales), int8_t{16});
  b.d = to_half(deviation / (16 * 18.5F));
}

template <class Block>
void fill_k_blocks(Random& random, std::byte* out, int64_t count, float deviation) {
  for (int64_t i = 0; i < count / Block::kElements; ++i) {
    Block block;
    random_bytes(random, block);
    scale_block(block, deviation);
    std::memcpy(out + i * static_cast<int64_t>(sizeof(Block)), &block, sizeof(Block));
  }
}

std::vector<std::byte> make_pattern(DType type, int64_t blocks, uint64_t seed, float deviation) {
  const int64_t count = blocks * dtype_info(type).block_elements;
  std::vector<std::byte> pattern(static_cast<size_t>(row_bytes(type, count)));
  Random random(seed * 0x9e3779b97f4a7c15U + static_cast<uint64_t>(type));
  switch (type) {
    case DType::kQ2_K:
      fill_k_blocks<BlockQ2_K>(random, pattern.data(), count, deviation);
      break;
    case DType::kQ3_K:
      fill_k_blocks<BlockQ3_K>(random, pattern.data(), count, deviation);
      break;
    case DType::kQ4_K:
      fill_k_blocks<BlockQ4_K>(random, pattern.data(), count, deviation);
      break;
    case DType::kQ5_K:
      fill_k_blocks<BlockQ5_K>(random, pattern.data(), count, deviation);
      break;
    case DType::kQ6_K:
      fill_k_blocks<BlockQ6_K>(random, pattern.data(), count, deviation);
      break;
    default: {
      std::vector<float> values(static_cast<size_t>(count));
      for (float& value : values) value = random.uniform() * deviation * 1.7320508F;
      quantize_reference(type, values.data(), pattern.data(), count);
    }
  }
  return pattern;
}

}  // namespace

// The pattern has about 1 MiB and an odd number of blocks, so that equal rows do not line up.
RandomPattern::RandomPattern(DType type, uint64_t seed, float deviation)
    : type_(type),
      blocks_(((int64_t{1} << 20) / dtype_info(type).block_bytes) | 1),
      bytes_(make_pattern(type, blocks_, seed, deviation)) {}

void RandomPattern::fill(std::byte* out, int64_t count, uint64_t shift) const {
  const DTypeInfo& info = dtype_info(type_);
  SPW_ASSERT(count >= 0 && count % info.block_elements == 0);
  const int64_t blocks = count / info.block_elements;
  auto offset = static_cast<int64_t>(shift % static_cast<uint64_t>(blocks_));
  for (int64_t done = 0; done < blocks; offset = (offset + 257) % blocks_) {
    const int64_t piece = std::min(blocks - done, blocks_ - offset);
    std::memcpy(out + done * info.block_bytes, bytes_.data() + offset * info.block_bytes,
                static_cast<size_t>(piece * info.block_bytes));
    done += piece;
  }
}

void fill_random(DType type, std::byte* out, int64_t count, uint64_t seed, float deviation) {
  RandomPattern(type, seed, deviation).fill(out, count);
}

}  // namespace spillway
