// SPDX-License-Identifier: Apache-2.0
// A sequence that has a cache to itself: its blocks in all groups of layers, step by step.
#pragma once

#include <cstdint>
#include <span>

#include "kv/block_allocator.h"
#include "kv/kv_cache.h"
#include "runtime/decoder.h"
#include "runtime/micro_batch.h"

namespace spillway {

// The cache must outlive it and be used by nobody else meanwhile.
class LoneSequence {
 public:
  // Throws kInvalidArgument where so many tokens do not fit.
  LoneSequence(const KvCache& kv, const Decoder& decoder, int64_t tokens);

  // Its part of a step: tokens at positions from `start` on, all tokens before which are computed,
  // with logits of the last rows. Valid until the next call.
  StepSequence part(std::span<const int32_t> tokens, int64_t start, int64_t logit_rows);

 private:
  int groups_;
  BlockAllocator allocator_;
  BlockTable table_;
};

}  // namespace spillway
