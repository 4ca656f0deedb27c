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
                  "tokens a request and its answer may have; 0 = the model's, at most 4096")
      ->capture_default_str()
      ->check(not_negative());
  command
      .add_option("--max-sequences", max_sequences,
                  fmt::format("concurrent requests, as far as memory allows (default: {}, on "
                              "a GPU {})",
                              on_cpu, on_gpu))
      ->check(in_range(1, 1 << 16));
}

}  // namespace spillway
