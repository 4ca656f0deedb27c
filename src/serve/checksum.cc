// SPDX-License-Identifier: Apache-2.0
#include "serve/checksum.h"

#include <fmt/core.h>
#include <xxhash.h>

namespace spillway {

uint64_t checksum64(std::string_view bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

std::string hex64(uint64_t value) { return fmt::format("{:016x}", value); }

}  // namespace spillway
