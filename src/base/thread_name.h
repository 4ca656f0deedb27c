// SPDX-License-Identifier: Apache-2.0
// What debuggers, top and /proc call a thread.
#pragma once

namespace spillway {

// Of the thread that calls, and of those that it makes from now on; at most 15 letters.
void name_this_thread(const char* name);

}  // namespace spillway
