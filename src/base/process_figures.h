// SPDX-License-Identifier: Apache-2.0
// What this process takes of the machine, as the system counts it.
#pragma once

#include <cstdint>

namespace spillway {

struct ProcessFigures {
  uint64_t resident_bytes = 0, virtual_bytes = 0;
  double cpu_s = 0;         // of all threads, in the program and in the system
  uint64_t open_files = 0;  // descriptors: files, sockets, devices
  uint64_t most_files = 0;  // that the process may open
  double start_time_s = 0;  // since 1970
};

// Takes some microseconds for each open descriptor. What the system does not tell is 0.
ProcessFigures process_figures();

}  // namespace spillway
