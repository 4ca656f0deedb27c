// SPDX-License-Identifier: Apache-2.0
// How a model's attention scores are distributed: what the unified maximum of FlashDecoding++
// (section 3) is calibrated with.
#pragma once

#include <cstdint>
#include <span>

#include "kv/kv_cache.h"
#include "runtime/decoder.h"

namespace spillway {

// Of scores q . k * scale, over all layers, heads and rows that were looked at.
struct ScoreRange {
  float lowest = 0;      // of all scores
  float highest = 0;     // of all scores
  float lowest_top = 0;  // of the largest score of each row
  double mean = 0;
  int64_t rows = 0;
};

// Computes `tokens` as one sequence from an empty cache (whose first blocks are overwritten), and
// looks at the scores of a few rows in every layer and head. Any device. Throws kInvalidArgument
// when the cache is too small.
ScoreRange measure_scores(Decoder& decoder, KvCache& kv, std::span<const int32_t> tokens);

}  // namespace spillway
