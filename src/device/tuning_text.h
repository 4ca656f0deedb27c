// SPDX-License-Identifier: Apache-2.0
// Reads and writes the text of the tuning file: tables of several machines as JSON.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "device/tuning.h"

namespace spillway {

// Raise this when the format changes, and when kernels change so much that old points mislead.
inline constexpr int kTuningVersion = 1;
inline constexpr size_t kMaxTuningBytes = size_t{4} << 20;

// Returns the text with one line for each shape, so that people can read and compare it.
std::string tuning_text(const TuningTables& tables);

// Parses a tuning file. Throws kInvalidArgument with `label` and the reason for anything but a text
// of this version with valid fields.
TuningTables parse_tuning_text(std::string_view text, const std::string& label);

}  // namespace spillway
