// SPDX-License-Identifier: Apache-2.0
// Ctrl-C as a flag that long work looks at, and signals that must not end the program by
// themselves.
#pragma once

#include <atomic>

namespace spillway {

// From now on the first SIGINT or SIGTERM sets the flag. Work that has not ended in order a few
// seconds later is ended: whatever is unfinished by then has no name, or goes with the next run. A
// second signal ends the process at once. Writing to a pipe that nobody reads, or beyond the
// largest size of a file, is an error. Called once, from main().
void install_interrupt_handler();
// True once interrupted; long work polls it (it fits the `cancel` pointers of loading and
// evaluation).
const std::atomic<bool>& interrupted();
// 128 + the signal that interrupted: what shells expect; 130 before any came.
int interrupt_exit_code();
// Forgets an interrupt, e.g. when it stopped one answer of a chat and the chat goes on.
void clear_interrupt();
// For a program that ends in its own time after the first signal, however long that takes; a second
// one ends it at once all the same.
void drain_on_interrupt();
// For a program that lives on after SIGINT, which stops one answer of it, whenever that may be.
// SIGTERM ends it all the same.
void survive_interrupts();

}  // namespace spillway
