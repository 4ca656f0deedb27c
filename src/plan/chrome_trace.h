// SPDX-License-Identifier: Apache-2.0
// Writes a timeline of workers in the format of Chrome's trace viewer, which Perfetto and
// chrome://tracing open.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace spillway {

class ChromeTrace {
 public:
  // Numbers that are shown beside a span; those below 0 are left out.
  using Arguments = std::vector<std::pair<const char*, int>>;

  // Adds a row to the timeline.
  void add_lane(int lane, std::string name) { lanes_.emplace_back(lane, std::move(name)); }
  void add_span(int lane, std::string name, double begin_s, double seconds, Arguments arguments) {
    spans_.push_back({lane, std::move(name), begin_s, seconds, std::move(arguments)});
  }
  std::string text() const;

 private:
  struct Span {
    int lane;
    std::string name;
    double begin_s, seconds;
    Arguments arguments;
  };
  std::vector<std::pair<int, std::string>> lanes_;
  std::vector<Span> spans_;
};

}  // namespace spillway
