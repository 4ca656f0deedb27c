// SPDX-License-Identifier: Apache-2.0
#include "cli/terminal.h"

#include <fmt/core.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "cli/exit_code.h"
#include "cli/interrupt.h"

namespace spillway {

bool stdout_is_terminal() { return isatty(STDOUT_FILENO) != 0; }
bool stderr_is_terminal() { return isatty(STDERR_FILENO) != 0; }

namespace {

// Whether the reader of standard output still takes something within a moment.
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
    // A signal. The work looks at it soon, unless nobody reads and this would wait for ever.
    if (interrupted() && !stdout_is_taken()) throw OutputEnded{interrupt_exit_code()};
  }
}

ProgressBar::ProgressBar(std::string title)
    : title_(std::move(title)), start_(std::chrono::steady_clock::now()) {}

ProgressBar::~ProgressBar() {
  if (shown_) fmt::print(stderr, "\r\x1b[K");
}

void ProgressBar::update(uint64_t done, uint64_t total, std::string_view detail) {
  using namespace std::chrono_literals;
  if (!stderr_is_terminal() || total == 0) return;
  const auto now = std::chrono::steady_clock::now();
  // Work that is over in a moment needs no bar.
  if (now - start_ < 200ms || now - last_ < 100ms) return;
  last_ = now;
  shown_ = true;
  constexpr int kWidth = 30;
  const double share = std::min(1.0, static_cast<double>(done) / static_cast<double>(total));
  const int filled = static_cast<int>(share * kWidth);
  fmt::print(stderr, "\r{} [{:#<{}}{:.<{}}] {:3.0f}% {}\x1b[K", title_, "", filled, "",
             kWidth - filled, share * 100, detail);
  std::fflush(stderr);
}

}  // namespace spillway
