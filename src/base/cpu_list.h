// SPDX-License-Identifier: Apache-2.0
// Parses lists of processors such as 0-7,16, and reads and sets which processors threads may run
// on.
#pragma once

#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace spillway {

inline constexpr int kMaxCpus = 8192;

// Parses numbers and ranges of numbers below kMaxCpus, as the kernel writes them under /sys and
// people in options. Returns them in the order given, each once. A trailing newline is accepted,
// and the empty text is the empty list; anything else gives nullopt.
[[nodiscard]] std::optional<std::vector<int>> try_parse_cpu_list(std::string_view text);

// Returns the processors that this thread may run on, ascending; empty where the kernel does not
// say.
std::vector<int> allowed_cpus();

// Makes this thread, and those that it starts from now on, run on these processors only. Returns
// false if the kernel refuses: none of them exists here or is allowed.
[[nodiscard]] bool try_restrict_this_thread(std::span<const int> cpus);

}  // namespace spillway
