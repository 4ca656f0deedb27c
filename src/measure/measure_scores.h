// SPDX-License-Identifier: Apache-2.0
// Measures how a model's attention scores are distributed, to calibrate the unified maximum of
// FlashDecoding++ (section 3).
#pragma once

#include <cstdint>
#include <span>

#include "kv/kv_cache.h"
#include "runtime/decoder.h"

namespace spillway {

// The distribution of scores q . k * scale, over all layers, heads and rows that were looked at.
struct ScoreRange {
  float lowest = 0;      // of all scores
  float highest = 0;     // of all scores
  float lowest_top = 0;  // the lowest among the largest scores of all rows
  double mean = 0;
  int64_t rows = 0;
};

// Computes `tokens` as one sequence from an empty cache (whose first blocks are overwritten), and
// looks at the scores of a few rows in every layer and head. Runs on any device. Throws
// kInvalidArgument if the cache is too small.
ScoreRange measure_scores(Decoder& decoder, KvCache& kv, std::span<const int32_t> tokens);

}  // namespace spillway
