// SPDX-License-Identifier: Apache-2.0
#include "engine/stop_matcher.h"

#include <algorithm>
#include <utility>

namespace spillway {

StopMatcher::StopMatcher(std::vector<std::string> stops) : stops_(std::move(stops)) {
  std::erase_if(stops_, [](const std::string& stop) { return stop.empty(); });
  std::ranges::sort(stops_);
}

// The stop strings that begin as the text does are a range of the sorted ones, which each further
// character narrows: thousands of them cost little more than one.
StopMatcher::Match StopMatcher::match(std::string_view text) const {
  auto first = stops_.begin(), last = stops_.end();
  for (size_t i = 0; i < text.size(); ++i) {
    const auto at = [i](const std::string& stop) { return static_cast<unsigned char>(stop[i]); };
    const auto wanted = static_cast<unsigned char>(text[i]);
    first = std::lower_bound(first, last, wanted, [&](const std::string& stop, unsigned char c) {
      return at(stop) < c;
    });
    last = std::upper_bound(first, last, wanted,
                            [&](unsigned char c, const std::string& stop) { return c < at(stop); });
    if (first == last) return Match::kNone;
    if (first->size() == i + 1) return Match::kWhole;  // the shortest is the first
  }
  return Match::kBegun;
}

std::string StopMatcher::push(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size() && !stopped_; ++i) out += push_byte(text[i]);
  return out;
}

std::string StopMatcher::push_byte(char byte) {
  held_ += byte;
  // Text is held back from the first place at which the rest may become a stop string.
  size_t begun = held_.size();
  for (size_t at = 0; at < held_.size(); ++at) {
    const Match found = match(std::string_view(held_).substr(at));
    if (found == Match::kBegun) begun = std::min(begun, at);
    if (found != Match::kWhole) continue;
    stopped_ = true;
    held_.resize(at);
    return std::exchange(held_, {});
  }
  std::string out = held_.substr(0, begun);
  held_.erase(0, begun);
  return out;
}

std::string StopMatcher::flush() { return stopped_ ? std::string() : std::exchange(held_, {}); }

}  // namespace spillway
