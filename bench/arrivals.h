// SPDX-License-Identifier: Apache-2.0
// Requests that come to an engine in a measurement, from a file.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "engine/generation.h"

namespace spillway {

// A line each: when it comes in seconds, tokens of its prompt, tokens of its answer, and what is
// asked, where lengths are predicted from that: with \n where its lines end, and \\ for a
// backslash. Tokens are drawn at random.
class Arrivals {
 public:
  struct Arrival {
    GenerationRequest request;  // max_tokens are the answer's
    double at_s = 0;
  };

  // Throws kInvalidArgument for a file that is none, or has no lines.
  Arrivals(const std::string& path, int64_t vocabulary, uint32_t seed);

  // Of the next one; none when all have come.
  std::optional<double> next_at_s() const {
    return next_ < lines_.size() ? std::optional(lines_[next_].at_s) : std::nullopt;
  }
  // When all have come they come again.
  Arrival take();
  size_t size() const { return lines_.size(); }
  // Of those taken.
  size_t came_again() const { return next_ - std::min(next_, lines_.size()); }

 private:
  struct Line {
    double at_s = 0;
    int prompt = 0, answer = 0;
    std::string asked = {};
  };
  std::vector<Line> lines_;
  int64_t vocabulary_;
  size_t next_ = 0;
  std::mt19937 random_;
};

}  // namespace spillway
