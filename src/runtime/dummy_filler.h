// SPDX-License-Identifier: Apache-2.0
// Random weights for models that are only a shape (dummy:NAME).
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>

#include "base/thread_pool.h"
#include "model/model.h"
#include "tensor/random_fill.h"

namespace spillway {

// Fills weights of a size in the GBs at the speed of memory: one pattern per type and spread,
// copied by all threads. Called from one thread.
class DummyFiller {
 public:
  // The values depend on `shift` and on which weights came before.
  void fill(const BoundWeight& weight, std::byte* data, uint64_t shift);
  // For one that is there already: those that come after it are as if it had been filled.
  void pass(const BoundWeight& weight);
  // Rows to groups of rows, in place.
  void pack(const BoundWeight& weight, std::byte* data);

 private:
  // Keeps activations at the same scale from layer to layer: norms multiply by one, biases are
  // small.
  const RandomPattern& pattern(const BoundWeight& weight);

  ThreadPool pool_;
  std::map<std::pair<DType, int64_t>, RandomPattern> patterns_;
};

}  // namespace spillway
