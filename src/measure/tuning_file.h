// SPDX-License-Identifier: Apache-2.0
// The tuning file on disk: what was measured once, on this machine and others.
#pragma once

#include <filesystem>
#include <optional>

#include "device/tuning.h"

namespace spillway {

// This machine's table, or nullopt: no such file, nothing in it about this machine, or (with a
// warning that says what is wrong) a file that is damaged, foreign or of another version. Results
// never depend on a half-read table.
[[nodiscard]] std::optional<TuningTable> try_read_tuning(const std::filesystem::path& path,
                                                         const TunedMachine& machine);

// Adds this machine's measurements to the file; other machines' and other shapes stay. Makes the
// folder. Throws kIo when it cannot be written, and kInvalidArgument rather than overwrite a file
// that is no tuning file, unless `replace_damaged`.
void write_tuning(const std::filesystem::path& path, const TunedMachine& machine,
                  const TuningTable& table, bool replace_damaged);

}  // namespace spillway
