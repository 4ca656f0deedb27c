// SPDX-License-Identifier: Apache-2.0
// Output to a terminal: progress bars on stderr, text on stdout as it comes.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "engine/progress.h"

namespace spillway {

bool stdin_is_terminal();
bool stdout_is_terminal();
bool stderr_is_terminal();
// Returns the present width of standard output; 0 if it is not a terminal, or one that cannot move
// the cursor.
int stdout_columns();

// Returns the start of an error line that may come at any time: on a terminal it first clears the
// line, in which a progress bar may stand.
std::string error_line_start();

// Writes to standard output without buffering. Throws OutputEnded if the reader has gone away or,
// after an interrupt, does not read; kIo for other errors.
void print_now(std::string_view text);

// Shows one line on stderr, as wide as the terminal allows, redrawn at most ten times a second;
// shows nothing if stderr is not a terminal. Not thread-safe.
class ProgressBar final : public Progress {
 public:
  explicit ProgressBar(std::string_view title);
  ~ProgressBar() override;  // clears the line
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  // `detail` is printed after the bar.
  void update(uint64_t done, uint64_t total, std::string_view detail) override;

 private:
  std::string title_;
  bool shown_ = false;
  std::chrono::steady_clock::time_point last_{};
  std::chrono::steady_clock::time_point start_;
};

}  // namespace spillway
