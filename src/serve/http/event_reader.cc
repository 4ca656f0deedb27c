// SPDX-License-Identifier: Apache-2.0
#include "serve/http/event_reader.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace spillway {

void EventReader::feed(std::string_view bytes, const std::function<bool(std::string_view)>& take) {
  while (!bytes.empty()) {
    if (is_after_cr_ && bytes.front() == '\n') bytes.remove_prefix(1);
    is_after_cr_ = false;
    const size_t end = std::min(bytes.find_first_of("\r\n"), bytes.size());
    SPW_CHECK(line_.size() + end <= most_bytes_, kIo, "an event's line has more than {} bytes",
              most_bytes_);
    line_.append(bytes.substr(0, end));
    if (end == bytes.size()) return;
    is_after_cr_ = bytes[end] == '\r';
    bytes.remove_prefix(end + 1);
    const bool ends_event = line_.empty() && has_data_;
    if (!line_.empty()) end_line();
    if (!ends_event) continue;
    has_data_ = false;
    const std::string data = std::exchange(data_, {});
    if (!take(data)) return;
  }
}

void EventReader::end_line() {
  constexpr std::string_view kMark = "\xEF\xBB\xBF", kField = "data";
  std::string_view line = line_;
  if (std::exchange(is_at_start_, false) && line.starts_with(kMark))
    line.remove_prefix(kMark.size());
  const size_t colon = std::min(line.find(':'), line.size());
  if (line.substr(0, colon) == kField) {
    std::string_view value = line.substr(std::min(colon + 1, line.size()));
    if (value.starts_with(' ')) value.remove_prefix(1);
    SPW_CHECK(data_.size() + value.size() < most_bytes_, kIo, "an event has more than {} bytes",
              most_bytes_);
    if (has_data_) data_ += '\n';
    data_ += value;
    has_data_ = true;
  }
  line_.clear();
}

}  // namespace spillway
