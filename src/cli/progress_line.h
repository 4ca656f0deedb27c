// SPDX-License-Identifier: Apache-2.0
// Formats one line of progress that fits a terminal of any width.
#pragma once

#include <string>
#include <string_view>

namespace spillway {

// Returns the number of columns of `text` (UTF-8) on a terminal: wide characters take two,
// combining marks none. Characters on which terminals disagree count as wide.
int display_width(std::string_view text);

// Returns `text` shortened to at most `columns` by "..." in its middle, at whole characters. Start
// and end stay, since they tell names of models apart.
std::string fit_columns(std::string_view text, int columns);

// Returns "loading model.gguf [######........]  42% 1.2 of 4.0 GiB" in fewer than `columns`
// columns: the last one stays free, since some terminals go to the next line when it is taken. With
// less room, bar and title become shorter, then bar, title and `detail` are left out; in the end
// only the percentage is left, or nothing. `share` is 0 to 1.
std::string progress_line(std::string_view title, double share, std::string_view detail,
                          int columns);

}  // namespace spillway
