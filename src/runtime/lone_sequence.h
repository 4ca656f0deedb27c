// SPDX-License-Identifier: Apache-2.0
// A sequence that has a KV cache to itself, and its blocks in all layer groups from step to step.
#pragma once

#include <cstdint>
#include <span>

#include "kv/block_allocator.h"
#include "kv/kv_cache.h"
#include "runtime/decoder.h"
#include "runtime/micro_batch.h"

namespace spillway {

// The cache must outlive it, and nothing else may use the cache meanwhile.
class LoneSequence {
 public:
  // Throws kInvalidArgument if `tokens` tokens do not fit into the cache.
  LoneSequence(const KvCache& kv, const Decoder& decoder, int64_t tokens);

  // Returns the sequence's share of a step: tokens at positions from `start` on, before which all
  // tokens have been computed, with logits of the last rows. It is valid until the next call.
  StepSequence part(std::span<const int32_t> tokens, int64_t start, int64_t logit_rows);

 private:
  int groups_;
  BlockAllocator allocator_;
  BlockTable table_;
};

}  // namespace spillway
