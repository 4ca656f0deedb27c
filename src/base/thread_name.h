// SPDX-License-Identifier: Apache-2.0
// Sets the name under which debuggers, top and /proc show a thread.
#pragma once

namespace spillway {

// Names the calling thread, and those that it starts from now on. A name of more than 15 bytes is
// ignored.
void name_this_thread(const char* name);

}  // namespace spillway
