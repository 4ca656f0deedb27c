// SPDX-License-Identifier: Apache-2.0
// Flags for the number of concurrent requests and their length.
#pragma once

#include <cstdint>

namespace spillway {

class Command;

// `context` is the limit of a request and its answer in tokens, 0 for the model's own, at most
// 4096. `max_sequences` is 0 for the default, `on_cpu` or `on_gpu`. Both must outlive the command.
void add_concurrency_flags(Command& command, int64_t& context, int& max_sequences, int on_cpu,
                           int on_gpu);

}  // namespace spillway
