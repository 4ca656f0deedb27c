// SPDX-License-Identifier: Apache-2.0
// Sets the name under which debuggers, top and /proc show a thread.
#pragma once

namespace spillway {

// Names the calling thread, and those that it starts from now on; at most 15 letters.
void name_this_thread(const char* name);

}  // namespace spillway
