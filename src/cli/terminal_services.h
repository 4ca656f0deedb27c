// SPDX-License-Identifier: Apache-2.0
// What sessions need of a program at a terminal: this machine's devices, bars and lines on stderr,
// Ctrl-C.
#pragma once

#include "engine/session_services.h"

namespace spillway {

SessionServices terminal_services();

}  // namespace spillway
