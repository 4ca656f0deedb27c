// SPDX-License-Identifier: Apache-2.0
// Reads what this process uses of the machine, as the system counts it.
#pragma once

#include <cstdint>

namespace spillway {

struct ProcessFigures {
  uint64_t resident_bytes = 0, virtual_bytes = 0;
  double cpu_s = 0;         // user and system time of all threads
  uint64_t open_files = 0;  // descriptors: files, sockets, devices
  uint64_t most_files = 0;  // limit of open descriptors
  double start_time_s = 0;  // since 1970
};

// Takes some microseconds for each open descriptor. Figures that the system does not report are 0.
ProcessFigures process_figures();

}  // namespace spillway
