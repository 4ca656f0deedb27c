// SPDX-License-Identifier: Apache-2.0
// Gives access to the files of machines/, which are compiled into the program, by name.
#pragma once

#include <span>
#include <string_view>
#include <utility>

namespace spillway {

extern const std::span<const std::pair<std::string_view, std::string_view>> kShippedHardware;

}  // namespace spillway
