// SPDX-License-Identifier: Apache-2.0
// How severe a line of the log is, and from which level on lines are written.
#pragma once

namespace spillway {

enum class LogLevel { kDebug, kInfo, kWarning, kError, kOff };

}  // namespace spillway
