// SPDX-License-Identifier: Apache-2.0
// Gives sessions the services of a program at a terminal: this machine's devices, progress bars and
// notices on stderr, and Ctrl-C.
#pragma once

#include "engine/session_services.h"

namespace spillway {

SessionServices terminal_services();

}  // namespace spillway
