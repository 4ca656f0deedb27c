// SPDX-License-Identifier: Apache-2.0
// What a person at a terminal sees: progress bars on stderr, text on stdout as it comes.
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
// Of the terminal that standard output is, now; 0 where it is none, or one that cannot move the
// cursor.
int stdout_columns();

// How an error begins that comes out of the blue: on a terminal a bar may stand in the line.
std::string error_line_start();

// To standard output, at once. Throws OutputEnded when the reader has gone away or, after an
// interrupt, does not read; kIo for anything else.
void print_now(std::string_view text);

// One line on stderr, as wide as the terminal allows, redrawn at most ten times a second; nothing
// at all when stderr is no terminal. Not thread-safe.
class ProgressBar final : public Progress {
 public:
  explicit ProgressBar(std::string_view title);
  ~ProgressBar() override;  // clears the line
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  // `detail` stands behind the bar.
  void update(uint64_t done, uint64_t total, std::string_view detail) override;

 private:
  std::string title_;
  bool shown_ = false;
  std::chrono::steady_clock::time_point last_{};
  std::chrono::steady_clock::time_point start_;
};

}  // namespace spillway
