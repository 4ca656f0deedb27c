// SPDX-License-Identifier: Apache-2.0
// How much memory the host has, and how much of it is free.
#pragma once

#include <cstdint>

namespace spillway {

// From the kernel and, in a container, its limit.
struct HostMemory {
  int64_t total_bytes = 0;
  int64_t available_bytes = 0;  // what can be had without swapping
  int64_t process_bytes = 0;    // memory of its own that this process has touched
};
HostMemory host_memory();

// Gives memory that this process has freed back to the system, which allocators keep otherwise.
// Takes some milliseconds, in which other threads may wait for the allocator.
void give_free_memory_back();
// From now on blocks of 4 MiB and more go back to the system when they are freed, without that
// call.
void give_large_blocks_back();

}  // namespace spillway
