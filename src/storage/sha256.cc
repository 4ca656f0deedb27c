// SPDX-License-Identifier: Apache-2.0
#include "storage/sha256.h"

#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <iterator>
#include <vector>

#include "storage/file.h"

namespace spillway {
namespace {

// FIPS 180-4, 4.2.2: the first 32 bits of the fractions of the cube roots of the first 64 primes.
constexpr uint32_t kRound[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

uint32_t load_big_endian(const std::byte* from) {
  uint32_t value;
  std::memcpy(&value, from, sizeof(value));
  return __builtin_bswap32(value);
}

// 6.2.2 with the roles of a..h rotated by the caller instead of moving them.
inline void round(uint32_t a, uint32_t b, uint32_t c, uint32_t& d, uint32_t e, uint32_t f,
                  uint32_t g, uint32_t& h, uint32_t k) {
  const uint32_t sum1 = std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25);
  const uint32_t sum0 = std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22);
  const uint32_t t = h + sum1 + (g ^ (e & (f ^ g))) + k;
  d += t;
  h = t + sum0 + ((a & b) | (c & (a | b)));
}

}  // namespace

void Sha256::compress(const std::byte* blocks, size_t count) {
  auto [s0, s1, s2, s3, s4, s5, s6, s7] = state_;
  for (; count > 0; --count, blocks += 64) {
    uint32_t w[16];  // the schedule, rolling
    for (size_t i = 0; i < 16; ++i) w[i] = load_big_endian(blocks + 4 * i);
    uint32_t a = s0, b = s1, c = s2, d = s3, e = s4, f = s5, g = s6, h = s7;
    for (size_t i = 0; i < 64; i += 16) {
      for (size_t j = 0; i > 0 && j < 16; ++j) {
        const uint32_t x = w[(j + 1) % 16];
        const uint32_t y = w[(j + 14) % 16];
        w[j] += w[(j + 9) % 16] + (std::rotr(x, 7) ^ std::rotr(x, 18) ^ (x >> 3)) +
                (std::rotr(y, 17) ^ std::rotr(y, 19) ^ (y >> 10));
      }
      for (size_t j = 0; j < 16; j += 8) {
        const uint32_t* k = kRound + i + j;
        round(a, b, c, d, e, f, g, h, k[0] + w[j]);
        round(h, a, b, c, d, e, f, g, k[1] + w[j + 1]);
        round(g, h, a, b, c, d, e, f, k[2] + w[j + 2]);
        round(f, g, h, a, b, c, d, e, k[3] + w[j + 3]);
        round(e, f, g, h, a, b, c, d, k[4] + w[j + 4]);
        round(d, e, f, g, h, a, b, c, k[5] + w[j + 5]);
        round(c, d, e, f, g, h, a, b, k[6] + w[j + 6]);
        round(b, c, d, e, f, g, h, a, k[7] + w[j + 7]);
      }
    }
    s0 += a, s1 += b, s2 += c, s3 += d, s4 += e, s5 += f, s6 += g, s7 += h;
  }
  state_ = {s0, s1, s2, s3, s4, s5, s6, s7};
}

void Sha256::update(std::span<const std::byte> bytes) {
  if (bytes.empty()) return;
  total_bytes_ += bytes.size();
  if (tail_bytes_ > 0) {
    const size_t n = std::min(bytes.size(), tail_.size() - tail_bytes_);
    std::memcpy(tail_.data() + tail_bytes_, bytes.data(), n);
    tail_bytes_ += n;
    bytes = bytes.subspan(n);
    if (tail_bytes_ < tail_.size()) return;
    compress(tail_.data(), 1);
    tail_bytes_ = 0;
  }
  compress(bytes.data(), bytes.size() / 64);
  const auto rest = bytes.last(bytes.size() % 64);
  if (!rest.empty()) std::memcpy(tail_.data(), rest.data(), rest.size());
  tail_bytes_ = rest.size();
}

std::array<uint8_t, 32> Sha256::digest() {
  const uint64_t bits = __builtin_bswap64(total_bytes_ * 8);
  // A one bit, zeros, the length: to the end of this block or of the next.
  std::array<std::byte, 72> end{std::byte{0x80}};
  const size_t zeros = (64 + 56 - 1 - tail_bytes_) % 64;
  std::memcpy(end.data() + 1 + zeros, &bits, sizeof(bits));
  update(std::span(end).first(1 + zeros + sizeof(bits)));
  std::array<uint8_t, 32> out;
  for (size_t i = 0; i < state_.size(); ++i) {
    const uint32_t word = __builtin_bswap32(state_[i]);
    std::memcpy(out.data() + 4 * i, &word, sizeof(word));
  }
  return out;
}

namespace {

std::string hex(const std::array<uint8_t, 32>& digest) {
  std::string text;
  for (const uint8_t byte : digest) fmt::format_to(std::back_inserter(text), "{:02x}", byte);
  return text;
}

}  // namespace

std::string sha256_hex(std::span<const std::byte> bytes) {
  Sha256 sum;
  sum.update(bytes);
  return hex(sum.digest());
}

std::string sha256_file(const std::filesystem::path& path) {
  const File file(path);
  std::vector<std::byte> part(size_t{1} << 20);
  Sha256 sum;
  for (uint64_t at = 0; at < file.size(); at += part.size()) {
    part.resize(std::min<uint64_t>(part.size(), file.size() - at));
    file.read_exact(at, part);
    sum.update(part);
  }
  return hex(sum.digest());
}

}  // namespace spillway
