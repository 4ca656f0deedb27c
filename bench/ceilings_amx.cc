// SPDX-License-Identifier: Apache-2.0
// Measures the peaks of AMX tile products: four tiles of sums, with two tiles of each operand
// loaded in each step.
#include <immintrin.h>

#include "bench/peak_loop.h"
#include "bench/peak_tile_inl.h"

namespace spillway {
namespace {

constexpr int kTileBytes = 1024;  // 16 rows of 64 bytes
constexpr int kOperandTiles = 4;
constexpr int kSteps = 8;  // 32 KB of operands

struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

// Tile numbers are part of the instruction, so each operation needs a loop of its own.
template <class Multiply>
inline void run_tiles(int64_t rounds, Multiply multiply) {
  alignas(64) unsigned char operands[kSteps * kOperandTiles * kTileBytes];
  static_assert(sizeof(operands) == kTileSteps * 1024);
  fill_operands(operands, 512, 512);
  const TileConfig config;
  asm volatile("" : : "r"(&config) : "memory");  // g++ 12 assumes that only 8 bytes are read
  _tile_loadconfig(&config);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int64_t round = 0; round < rounds; ++round) {
    const unsigned char* at = operands;
    asm volatile("" : "+r"(at) : : "memory");  // the compiler must assume that the operands changed
    for (int step = 0; step < kSteps; ++step, at += kOperandTiles * kTileBytes) {
      _tile_loadd(4, at, 64);
      _tile_loadd(5, at + kTileBytes, 64);
      _tile_loadd(6, at + 2 * kTileBytes, 64);
      _tile_loadd(7, at + 3 * kTileBytes, 64);
      multiply();
    }
  }
  alignas(64) unsigned char seen[kTileBytes];
  _tile_stored(0, seen, 64);
  asm volatile("" : : "r"(seen) : "memory");
  _tile_release();
}

void run_int8(int64_t rounds) {
  run_tiles(rounds, [] {
    _tile_dpbssd(0, 4, 6);
    _tile_dpbssd(1, 4, 7);
    _tile_dpbssd(2, 5, 6);
    _tile_dpbssd(3, 5, 7);
  });
}

void run_bf16(int64_t rounds) {
  run_tiles(rounds, [] {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  });
}

// Returns the operations of a round: a product makes 16 x 16 sums over 64 bytes of operands each.
constexpr double ops(int operand_bytes) {
  return 2.0 * 4 * kSteps * 16 * 16 * (64 / operand_bytes);
}

}  // namespace

extern const PeakLoop kAmxInt8Loop{"tdpbssd", "int8", ops(1), run_int8};
extern const PeakLoop kAmxBf16Loop{"tdpbf16ps", "bf16", ops(2), run_bf16};

}  // namespace spillway
