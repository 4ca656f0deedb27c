// SPDX-License-Identifier: Apache-2.0
#include "cli/interrupt.h"

#include <unistd.h>

#include <csignal>

namespace spillway {
namespace {

std::atomic<bool> g_interrupted{false};
std::atomic<int> g_signal{SIGINT};
static_assert(std::atomic<bool>::is_always_lock_free && std::atomic<int>::is_always_lock_free,
              "set from a signal handler");

void on_signal(int signal) {
  g_signal.store(signal);
  if (g_interrupted.exchange(true)) _exit(128 + signal);
}

}  // namespace

void install_interrupt_handler() {
  struct sigaction action = {};
  action.sa_handler = on_signal;
  sigemptyset(&action.sa_mask);
  action.sa_flags = 0;  // blocking reads return, so that a prompt for input ends too
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  // A reader that went away is an error on write, not a death.
  std::signal(SIGPIPE, SIG_IGN);
}

const std::atomic<bool>& interrupted() { return g_interrupted; }
int interrupt_exit_code() { return 128 + g_signal.load(); }
void clear_interrupt() { g_interrupted.store(false); }

}  // namespace spillway
