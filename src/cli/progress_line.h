// SPDX-License-Identifier: Apache-2.0
// One line of progress that fits a terminal, whatever its width.
#pragma once

#include <string>
#include <string_view>

namespace spillway {

// How many columns a terminal gives to `text` (UTF-8): wide characters take two, marks that combine
// none. What terminals disagree on counts as wide.
int display_width(std::string_view text);

// `text` cut in the middle, with "..." there, to at most `columns`; whole characters only. Begin
// and end are what tells the names of models apart.
std::string fit_columns(std::string_view text, int columns);

// "loading model.gguf [######........]  42% 1.2 of 4.0 GiB", in less than `columns` columns: the
// last one stays free, since some terminals go to the next line when it is taken. Where
// that is too little, bar and title become shorter, then bar, title and `detail` fall away; in the
// end only the percentage is left, or nothing. `share` is 0 to 1.
std::string progress_line(std::string_view title, double share, std::string_view detail,
                          int columns);

}  // namespace spillway
