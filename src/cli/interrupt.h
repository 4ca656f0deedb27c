// SPDX-License-Identifier: Apache-2.0
// Turns Ctrl-C and SIGTERM into a flag that long work polls, and keeps other signals from ending
// the program.
#pragma once

#include <atomic>

namespace spillway {

// From now on the first SIGINT or SIGTERM sets the flag. Work that does not end in order within a
// few seconds is killed: unfinished files have no name yet, or are resumed by the next run. A
// second signal ends the process immediately. Writing to a pipe without a reader, or beyond the
// largest file size, becomes an error. Called once, from main().
void install_interrupt_handler();
// True once interrupted; long work polls it (it also serves as the `cancel` pointer of loading and
// evaluation).
const std::atomic<bool>& interrupted();
// Returns 128 + the signal that interrupted, as shells expect; 130 before any came.
int interrupt_exit_code();
// Clears the flag, e.g. when the interrupt stopped one answer of a chat and the chat goes on.
void clear_interrupt();
// Lets the program end in its own time after the first signal, however long that takes; a second
// signal still ends it immediately.
void drain_on_interrupt();
// Lets the program go on after SIGINT, which only stops its current answer. SIGTERM still ends it.
void survive_interrupts();

}  // namespace spillway
