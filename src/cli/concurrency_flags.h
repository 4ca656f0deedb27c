// SPDX-License-Identifier: Apache-2.0
// How many requests are at work at once, and how long they may be, on the command line.
#pragma once

#include <cstdint>

namespace spillway {

class Command;

// `context`: tokens of a request and its answer, 0 for the model's, at most 4096. `max_sequences`:
// 0 for what is usual, `on_cpu` or `on_gpu`. Both must outlive the command.
void add_concurrency_flags(Command& command, int64_t& context, int& max_sequences, int on_cpu,
                           int on_gpu);

}  // namespace spillway
