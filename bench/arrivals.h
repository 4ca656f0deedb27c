// SPDX-License-Identifier: Apache-2.0
// Reads the requests of a measurement, with their arrival times, from a file.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "engine/generation.h"

namespace spillway {

// Each line of the file has the arrival time in seconds, the tokens of the prompt, the tokens of
// the answer and, if lengths are predicted from it, the prompt's text, with \n for line ends and
// \\ for a backslash. Token ids are random.
class Arrivals {
 public:
  struct Arrival {
    GenerationRequest request;  // max_tokens is the length of the answer
    double at_s = 0;
  };

  // Throws kInvalidArgument for a file that cannot be read or has no lines.
  Arrivals(const std::string& path, int64_t vocabulary, uint32_t seed);

  // The arrival time of the next request; nullopt after the last one.
  std::optional<double> next_at_s() const {
    return next_ < lines_.size() ? std::optional(lines_[next_].at_s) : std::nullopt;
  }
  // Takes the next request; after the last one, the first follows again.
  Arrival take();
  size_t size() const { return lines_.size(); }
  // How many of the requests taken were repetitions.
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
