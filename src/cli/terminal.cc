// SPDX-License-Identifier: Apache-2.0
#include "cli/terminal.h"

#include <fmt/core.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "base/error.h"
#include "base/printable.h"
#include "cli/exit_code.h"
#include "cli/interrupt.h"
#include "cli/progress_line.h"

namespace spillway {

bool stdin_is_terminal() { return isatty(STDIN_FILENO) != 0; }
bool stdout_is_terminal() { return isatty(STDOUT_FILENO) != 0; }
bool stderr_is_terminal() { return isatty(STDERR_FILENO) != 0; }

int stdout_columns() {
  const char* const kind = std::getenv("TERM");
  if (!stdout_is_terminal() || kind == nullptr || std::string_view(kind) == "dumb") return 0;
  struct winsize size = {};
  return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

std::string error_line_start() {
  return stderr_is_terminal() ? "\r\x1b[Kspillway: " : "spillway: ";
}

namespace {

// Returns whether standard output takes more data within 0.2 s.
bool stdout_is_taken() {
  struct pollfd output = {STDOUT_FILENO, POLLOUT, 0};
  return poll(&output, 1, 200) > 0;
}

}  // namespace

void print_now(std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = write(STDOUT_FILENO, text.data(), text.size());
    if (written > 0) {
      text.remove_prefix(static_cast<size_t>(written));
      continue;
    }
    if (errno == EPIPE) throw OutputEnded{141};
    SPW_CHECK(errno == EINTR, kIo, "cannot write to standard output: {}", std::strerror(errno));
    // A signal interrupted the write. The work polls the flag soon, unless output is blocked for
    // ever because nothing reads it.
    if (interrupted() && !stdout_is_taken()) throw OutputEnded{interrupt_exit_code()};
  }
}

namespace {

// Queried at each update, since windows are resized.
int stderr_columns() {
  struct winsize size = {};
  const bool known = ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return known ? size.ws_col : 80;
}

}  // namespace

ProgressBar::ProgressBar(std::string_view title)
    : title_(printable(title)), start_(std::chrono::steady_clock::now()) {}

ProgressBar::~ProgressBar() {
  if (shown_) fmt::print(stderr, "\r\x1b[K");
}

void ProgressBar::update(uint64_t done, uint64_t total, std::string_view detail) {
  using namespace std::chrono_literals;
  if (total == 0 || !stderr_is_terminal()) return;
  const auto now = std::chrono::steady_clock::now();
  // Short work gets no bar.
  if (now - start_ < 200ms || now - last_ < 100ms) return;
  last_ = now;
  shown_ = true;
  const double share = std::min(1.0, static_cast<double>(done) / static_cast<double>(total));
  // Written with one call, so that no other output comes in between.
  const std::string line =
      fmt::format("\r{}\x1b[K", progress_line(title_, share, detail, stderr_columns()));
  std::fwrite(line.data(), 1, line.size(), stderr);
  std::fflush(stderr);
}

}  // namespace spillway
