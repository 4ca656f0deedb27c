// SPDX-License-Identifier: Apache-2.0
// Parses and prints byte counts as people write them: "16GiB", "1.5 GB", "4096".
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace spillway {

// Binary suffixes (KiB MiB GiB TiB, and K M G T alone) count in 1024, KB MB GB TB in 1000; case
// does not matter. Returns nullopt for anything else: negative, not finite, unknown suffix, larger
// than int64.
[[nodiscard]] std::optional<int64_t> try_parse_bytes(std::string_view text);

// Returns text such as "93.8 MiB", with three significant digits.
std::string format_bytes(uint64_t bytes);

}  // namespace spillway
