// SPDX-License-Identifier: Apache-2.0
// How weights are brought into memory, and who watches.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>

namespace spillway {

enum class WeightAccess : uint8_t {
  kMapped,  // weights that stay as they are stored are the page cache's own pages, which processes
            // share; others are taken from it where it has them
  kDirect,  // O_DIRECT into an arena: the page cache stays out of it
};

struct WeightLoadOptions {
  WeightAccess access = WeightAccess::kMapped;
  bool compress = false;  // plain matrices become 4-bit groups, see compress_matrices()
  // Called with growing `done`, by one thread at a time (not always the same).
  std::function<void(uint64_t done, uint64_t total)> progress;
  const std::atomic<bool>* cancel = nullptr;  // set to true: loading throws kCancelled soon
};

}  // namespace spillway
