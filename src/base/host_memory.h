// SPDX-License-Identifier: Apache-2.0
// Reads how much memory the host has, and how much of it is free.
#pragma once

#include <cstdint>

namespace spillway {

// Figures from the kernel and, in a container, from its limit.
struct HostMemory {
  int64_t total_bytes = 0;
  int64_t available_bytes = 0;  // without swapping
  int64_t process_bytes = 0;    // private memory (RssAnon) that this process has touched
};
HostMemory host_memory();

// Gives memory that this process has freed, which allocators keep otherwise, back to the system.
// Takes some milliseconds, in which other threads may wait for the allocator.
void give_free_memory_back();
// Makes the allocator give blocks of 4 MiB and more back to the system as soon as they are freed,
// without give_free_memory_back().
void give_large_blocks_back();

}  // namespace spillway
