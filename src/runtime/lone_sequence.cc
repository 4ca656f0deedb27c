// SPDX-License-Identifier: Apache-2.0
#include "runtime/lone_sequence.h"

#include "base/error.h"

namespace spillway {

LoneSequence::LoneSequence(const KvCache& kv, const Decoder& decoder, int64_t tokens)
    : groups_(kv.groups()),
      allocator_(kv.group_pools(), decoder.span_blocks(), decoder.max_tokens()),
      table_(allocator_, tokens) {
  SPW_CHECK(tokens <= allocator_.longest(), kInvalidArgument,
            "{} tokens do not fit into a KV cache of {} tokens", tokens, allocator_.longest());
}

StepSequence LoneSequence::part(std::span<const int32_t> tokens, int64_t start,
                                int64_t logit_rows) {
  table_.release_behind(start);
  SPW_CHECK(table_.try_reserve(start + static_cast<int64_t>(tokens.size())), kInternal,
            "internal error: no blocks for {} tokens behind {}", tokens.size(), start);
  StepSequence part{tokens, static_cast<int32_t>(start), table_.blocks(),
                    static_cast<int32_t>(logit_rows)};
  for (int group = 1; group < groups_; ++group)
    part.other_tables[static_cast<size_t>(group - 1)] = table_.blocks(group);
  return part;
}

}  // namespace spillway
