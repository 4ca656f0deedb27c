// SPDX-License-Identifier: Apache-2.0
#include "cli/progress_line.h"

#include <fmt/core.h>

#include <algorithm>
#include <string>
#include <vector>

#include "text/utf8.h"

namespace spillway {
namespace {

struct Range {
  char32_t first, last;
};
// Whole Unicode blocks rather than single characters: at worst a column is left free.
constexpr Range kWide[] = {
    {0x1100, 0x115F},   {0x231A, 0x23FF},   {0x2600, 0x27BF},   {0x2B00, 0x2BFF},
    {0x2E80, 0x303E},   {0x3041, 0xA4CF},   {0xA960, 0xA97F},   {0xAC00, 0xD7A3},
    {0xF900, 0xFAFF},   {0xFE10, 0xFE19},   {0xFE30, 0xFE6F},   {0xFF00, 0xFF60},
    {0xFFE0, 0xFFE6},   {0x16FE0, 0x18DFF}, {0x1AFF0, 0x1B2FF}, {0x1F000, 0x1FAFF},
    {0x20000, 0x3FFFD},
};
constexpr Range kCombining[] = {
    {0x0300, 0x036F}, {0x0483, 0x0489}, {0x0591, 0x05BD}, {0x064B, 0x065F}, {0x1AB0, 0x1AFF},
    {0x1DC0, 0x1DFF}, {0x200B, 0x200D}, {0x20D0, 0x20FF}, {0xFE00, 0xFE0F}, {0xFE20, 0xFE2F},
};

bool is_in(const auto& ranges, char32_t c) {
  return std::ranges::any_of(ranges, [c](Range r) { return r.first <= c && c <= r.last; });
}

int width_of(char32_t c) { return is_in(kCombining, c) ? 0 : is_in(kWide, c) ? 2 : 1; }

struct Character {
  std::string_view text;
  int width;
};
std::vector<Character> characters_of(std::string_view text) {
  std::vector<Character> all;
  for (size_t at = 0; at < text.size();) {
    const Utf8Char c = decode_utf8(text, at);
    all.push_back({text.substr(at, c.bytes), width_of(c.code_point)});
    at += c.bytes;
  }
  return all;
}

}  // namespace

int display_width(std::string_view text) {
  int width = 0;
  for (const Character& c : characters_of(text)) width += c.width;
  return width;
}

std::string fit_columns(std::string_view text, int columns) {
  if (display_width(text) <= columns) return std::string(text);
  constexpr std::string_view kGap = "...";
  const std::string_view gap = kGap.substr(0, static_cast<size_t>(std::clamp(columns, 0, 3)));
  const int room = std::max(0, columns - static_cast<int>(gap.size()));
  const std::vector<Character> all = characters_of(text);
  std::string front;
  size_t first = 0;
  int used = 0;
  for (; first < all.size() && used + all[first].width <= (room + 1) / 2; ++first) {
    front += all[first].text;
    used += all[first].width;
  }
  size_t last = all.size();  // start of the kept end
  while (last > first && used + all[last - 1].width <= room) used += all[--last].width;
  // Skips combining marks whose letter is cut off.
  while (last < all.size() && all[last].width == 0) ++last;
  std::string out = front + std::string(gap);
  for (; last < all.size(); ++last) out += all[last].text;
  return out;
}

std::string progress_line(std::string_view title, double share, std::string_view detail,
                          int columns) {
  constexpr int kBar = 30, kLeastBar = 8, kLeastTitle = 12;
  const std::string percent = fmt::format("{:3.0f}%", share * 100);
  // Gives columns to the most informative parts first; each part has a blank beside it.
  int left = columns - 1 - static_cast<int>(percent.size());
  if (left < 0) return "";
  const int detail_width = display_width(detail), title_width = display_width(title);
  const bool has_detail = detail_width > 0 && detail_width < left;
  if (has_detail) left -= detail_width + 1;
  const int least_title = std::min(title_width, kLeastTitle);
  const bool has_title = least_title > 0 && least_title < left;
  // The bar shrinks, down to kLeastBar, to leave room for a whole title.
  int bar = std::clamp(left - (has_title ? title_width + 1 : 0) - 3, kLeastBar, kBar);
  if (bar + 3 > left - (has_title ? least_title + 1 : 0)) bar = 0;
  if (bar > 0) left -= bar + 3;

  std::string line;
  if (has_title) line += fit_columns(title, left - 1) + " ";
  if (bar > 0) {
    const int filled = static_cast<int>(share * bar);
    line += fmt::format("[{:#<{}}{:.<{}}] ", "", filled, "", bar - filled);
  }
  line += percent;
  if (has_detail) line += fmt::format(" {}", detail);
  return line;
}

}  // namespace spillway
