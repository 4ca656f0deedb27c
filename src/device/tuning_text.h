// SPDX-License-Identifier: Apache-2.0
// The tuning file's text: tables of several machines as JSON.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "device/tuning.h"

namespace spillway {

// To be raised when the format changes, and when kernels change so much that old points mislead.
inline constexpr int kTuningVersion = 1;
inline constexpr size_t kMaxTuningBytes = size_t{4} << 20;

// One line for each shape, so that people can read and compare it.
std::string tuning_text(const TuningTables& tables);

// Throws kInvalidArgument, with `label` and what is wrong, for anything but a text of this version
// whose every field makes sense.
TuningTables parse_tuning_text(std::string_view text, const std::string& label);

}  // namespace spillway
