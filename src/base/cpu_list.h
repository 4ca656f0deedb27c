// SPDX-License-Identifier: Apache-2.0
// Processors by number: lists such as 0-7,16, and which of them threads may run on.
#pragma once

#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace spillway {

inline constexpr int kMaxCpus = 8192;

// Numbers and ranges of numbers below kMaxCpus, in the order given, each once; what the kernel
// writes under /sys and people write in options. A trailing newline is fine. nullopt for anything
// else; the empty text is the empty list.
[[nodiscard]] std::optional<std::vector<int>> try_parse_cpu_list(std::string_view text);

// The processors that this thread may run on, ascending; empty where the kernel does not say.
std::vector<int> allowed_cpus();

// From now on this thread, and those it starts, run on these only. False when the kernel refuses:
// none of them exists here or is allowed.
[[nodiscard]] bool try_restrict_this_thread(std::span<const int> cpus);

}  // namespace spillway
