// SPDX-License-Identifier: Apache-2.0
#include "cli/concurrency_flags.h"

#include <fmt/core.h>

#include "cli/command_line.h"
#include "cli/value_check.h"

namespace spillway {

void add_concurrency_flags(Command& command, int64_t& context, int& max_sequences, int on_cpu,
                           int on_gpu) {
  command
      .add_option("-c,--ctx", context,
                  "most tokens of a request with its answer; 0 = the model's, at most 4096")
      ->check(not_negative())
      ->group(HelpGroup::kRequests)
      ->basic();
  command
      .add_option("--max-sequences", max_sequences,
                  "most requests that run concurrently, as far as memory allows")
      ->check(in_range(1, 1 << 16))
      ->default_text(fmt::format("{}, on a GPU {}", on_cpu, on_gpu))
      ->group(HelpGroup::kRequests)
      ->basic();
}

}  // namespace spillway
