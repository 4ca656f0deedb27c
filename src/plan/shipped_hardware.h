// SPDX-License-Identifier: Apache-2.0
// The files of machines/, in the program.
#pragma once

#include <span>
#include <string_view>
#include <utility>

namespace spillway {

extern const std::span<const std::pair<std::string_view, std::string_view>> kShippedHardware;

}  // namespace spillway
