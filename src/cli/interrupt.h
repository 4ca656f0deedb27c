// SPDX-License-Identifier: Apache-2.0
// Ctrl-C as a flag that long work looks at.
#pragma once

#include <atomic>

namespace spillway {

// From now on the first SIGINT or SIGTERM sets the flag; a second one ends the process at once.
// Called once, from main().
void install_interrupt_handler();
// True once interrupted; long work polls it (it fits the `cancel` pointers of loading and
// evaluation).
const std::atomic<bool>& interrupted();
// 128 + the signal that interrupted: what shells expect; 130 before any came.
int interrupt_exit_code();
// Forgets an interrupt, e.g. when it stopped one answer of a chat and the chat goes on.
void clear_interrupt();

}  // namespace spillway
