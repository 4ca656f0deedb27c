// SPDX-License-Identifier: Apache-2.0
// The severity of a log line, and the level from which on lines are written.
#pragma once

namespace spillway {

enum class LogLevel { kDebug, kInfo, kWarning, kError, kOff };

}  // namespace spillway
