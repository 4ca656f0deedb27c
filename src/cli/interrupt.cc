// SPDX-License-Identifier: Apache-2.0
#include "cli/interrupt.h"

#include <unistd.h>

#include <csignal>
#include <string_view>

namespace spillway {
namespace {

std::atomic<bool> g_interrupted{false};
std::atomic<int> g_signal{SIGINT};
std::atomic<bool> g_survives{false};
std::atomic<bool> g_drains{false};
constexpr unsigned kPatienceSeconds = 3;
static_assert(std::atomic<bool>::is_always_lock_free && std::atomic<int>::is_always_lock_free,
              "set from a signal handler");

void on_signal(int signal) {
  g_signal.store(signal);
  if (g_interrupted.exchange(true)) _exit(128 + signal);
  if (g_drains.load()) return;
  if (signal == SIGTERM || !g_survives.load()) alarm(kPatienceSeconds);
}

void on_alarm(int) {
  // Clears the line if there may be a progress bar in it.
  constexpr std::string_view kLine = "spillway: stopped\n",
                             kCleared = "\r\x1b[Kspillway: stopped\n";
  const std::string_view line = isatty(STDERR_FILENO) != 0 ? kCleared : kLine;
  static_cast<void>(!write(STDERR_FILENO, line.data(), line.size()));
  _exit(interrupt_exit_code());
}

}  // namespace

void install_interrupt_handler() {
  struct sigaction action = {};
  action.sa_handler = on_signal;
  sigemptyset(&action.sa_mask);
  action.sa_flags = 0;  // blocking reads return, so that a prompt for input ends, too
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  action.sa_handler = on_alarm;
  sigaction(SIGALRM, &action, nullptr);
  // A closed pipe or a file over its size limit becomes an error of write() instead of a fatal
  // signal.
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
}

const std::atomic<bool>& interrupted() { return g_interrupted; }
int interrupt_exit_code() { return 128 + g_signal.load(); }
void clear_interrupt() {
  alarm(0);
  g_interrupted.store(false);
}
void drain_on_interrupt() { g_drains.store(true); }
void survive_interrupts() { g_survives.store(true); }

}  // namespace spillway
