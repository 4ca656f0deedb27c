// SPDX-License-Identifier: Apache-2.0
// Checksums of short texts as numbers: xxHash, which finds damage, not forgery. base/digest.h has
// longer ones, for what must differ in a lifetime.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace spillway {

uint64_t checksum64(std::string_view bytes);
std::string hex64(uint64_t value);  // 16 digits

}  // namespace spillway
