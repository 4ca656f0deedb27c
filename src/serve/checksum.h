// SPDX-License-Identifier: Apache-2.0
// 64-bit checksums of short texts by xxHash, which finds damage, not forgery. base/digest.h has
// longer ones for values that must never collide.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace spillway {

uint64_t checksum64(std::string_view bytes);
std::string hex64(uint64_t value);  // returns 16 digits

}  // namespace spillway
