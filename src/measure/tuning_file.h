// SPDX-License-Identifier: Apache-2.0
// Reads and writes the tuning file, which keeps measurements of this machine and others.
#pragma once

#include <filesystem>
#include <optional>

#include "device/tuning.h"

namespace spillway {

// Returns this machine's table, or nullopt if there is no such file, if it has nothing about this
// machine, or (with a warning that gives the reason) if it is damaged, foreign or of another
// version. Results never depend on a half-read table.
[[nodiscard]] std::optional<TuningTable> try_read_tuning(const std::filesystem::path& path,
                                                         const TunedMachine& machine);

// Adds this machine's measurements to the file; those of other machines and shapes stay. Makes the
// folder. Throws kIo if the file cannot be written, and kInvalidArgument rather than overwrite a
// file that is not a tuning file, unless `replace_damaged`.
void write_tuning(const std::filesystem::path& path, const TunedMachine& machine,
                  const TuningTable& table, bool replace_damaged);

}  // namespace spillway
