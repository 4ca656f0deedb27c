// SPDX-License-Identifier: Apache-2.0
// Options for loading weights into memory, with progress and cancellation.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>

namespace spillway {

enum class WeightAccess : uint8_t {
  // Weights that stay as they are stored are pages of the page cache, which processes share; others
  // are read from the page cache if it has them.
  kMapped,
  kDirect,  // O_DIRECT into an arena, bypassing the page cache
};

struct WeightLoadOptions {
  WeightAccess access = WeightAccess::kMapped;
  bool compress = false;  // makes plain matrices 4-bit groups, see compress_matrices()
  // Called with growing `done`, by one thread at a time (not always the same).
  std::function<void(uint64_t done, uint64_t total)> progress;
  const std::atomic<bool>* cancel = nullptr;  // when set to true, loading soon throws kCancelled
};

}  // namespace spillway
