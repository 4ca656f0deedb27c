// SPDX-License-Identifier: Apache-2.0
#include "text/jinja/text.h"

#include <algorithm>

namespace spillway::jinja {

Text::Text(std::string_view bytes, const std::vector<Run>& runs) : bytes_(bytes) {
  if (runs.empty()) return;
  origin_ = runs.front().origin;
  if (runs.size() > 1) runs_ = &runs;
}

size_t Text::first_run() const {
  const auto found = std::upper_bound(runs_->begin(), runs_->end(), offset_,
                                      [](size_t at, const Run& run) { return at < run.end; });
  return static_cast<size_t>(found - runs_->begin());
}

Text Text::part(size_t begin, size_t bytes) const {
  Text result = *this;
  begin = std::min(begin, bytes_.size());
  result.bytes_ = bytes_.substr(begin, bytes);
  if (runs_ == nullptr || result.bytes_.empty()) {
    result.runs_ = nullptr;
    return result;
  }
  result.offset_ = offset_ + begin;
  const Run& run = (*runs_)[result.first_run()];
  result.origin_ = run.origin;
  if (run.end >= result.offset_ + result.bytes_.size()) result.runs_ = nullptr;
  return result;
}

Text Text::part(std::string_view view) const {
  return part(static_cast<size_t>(view.data() - bytes_.data()), view.size());
}

Text Text::with_markup(bool is_markup) const {
  Text result = *this;
  result.is_markup_ = is_markup;
  return result;
}

void OriginBytes::append(std::string_view more, Origin origin) {
  if (more.empty()) return;
  bytes.append(more);
  if (runs.empty() || runs.back().origin != origin) runs.push_back({.end = 0, .origin = origin});
  runs.back().end = bytes.size();
}

void OriginBytes::append(const Text& more) {
  more.for_each_run([&](std::string_view part, Origin origin) { append(part, origin); });
}

}  // namespace spillway::jinja
