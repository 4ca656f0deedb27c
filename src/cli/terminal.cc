// SPDX-License-Identifier: Apache-2.0
#include "cli/terminal.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "cli/exit_code.h"

namespace spillway {

bool stdout_is_terminal() { return isatty(STDOUT_FILENO) != 0; }
bool stderr_is_terminal() { return isatty(STDERR_FILENO) != 0; }

void print_now(std::string_view text) {
  const bool ok =
      std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0;
  if (ok) return;
  if (errno == EPIPE) throw BrokenPipe{};
  fail(ErrorCode::kIo, "cannot write to standard output: {}", std::strerror(errno));
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
