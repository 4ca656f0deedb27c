// SPDX-License-Identifier: Apache-2.0
// A request while the engine has it: its parameters and the answer so far.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <unordered_set>
#include <utility>
#include <vector>

#include "engine/draft_control.h"
#include "engine/draft_source.h"
#include "engine/generation.h"
#include "engine/sampler.h"
#include "engine/stop_matcher.h"
#include "kv/block_key.h"
#include "schedule/request_id.h"
#include "tensor/state_rule.h"
#include "text/detokenizer.h"
#include "text/tokenizer.h"

namespace spillway {

// The draft tokens of a request.
struct RequestDrafts {
  std::unique_ptr<DraftSource> source;  // null: there are none
  DraftControl control = {};
  std::vector<TokenId> next = {};  // for the next step, which may take fewer of them
  int64_t proposed = 0, accepted = 0;
};

struct EngineRequest {
  // `base_key` begins the chains of block keys of requests without a cache salt.
  EngineRequest(RequestId request_id, GenerationRequest request, const BlockKey& base_key,
                const Tokenizer* tokenizer, int64_t vocab_size)
      : id(request_id),
        params(std::move(request)),
        tokens(params.prompt),
        sampler(params.sampling, params.prompt),
        stops(params.stop),
        first_key(params.cache_salt.empty() ? base_key : salted_key(base_key, params.cache_salt)) {
    // The answer continues the prompt, so its leading space is kept.
    if (tokenizer != nullptr) detokenizer.emplace(*tokenizer, DecodeOptions{.continues = true});
    end_ids = params.stop_ids;
    if (tokenizer != nullptr && !params.ignore_end) {
      // A tokenizer may have more tokens than the model, which never generates those.
      for (const TokenId end : tokenizer->end_of_generation())
        if (end < vocab_size) end_ids.push_back(end);
    }
    if (params.min_tokens > 0) sampler.forbid_until(params.min_tokens, end_ids);
  }
  int64_t generated() const { return static_cast<int64_t>(tokens.size() - params.prompt.size()); }
  int64_t next_position() const { return static_cast<int64_t>(tokens.size()); }

  RequestId id;
  GenerationRequest params;
  std::vector<TokenId> tokens;   // prompt and answer
  std::vector<TokenId> end_ids;  // tokens that end the answer; few
  Sampler sampler;
  StopMatcher stops;
  std::optional<IncrementalDetokenizer> detokenizer;
  // Begins the chain of its block keys: stands for all that its KV depends on besides its tokens.
  BlockKey first_key;
  std::vector<BlockKey> keys = {};  // of its full blocks in the first group, as far as needed yet
  // By group, the blocks that it will begin with and that were fetched to host memory, where they
  // are pinned; `from_disk` has those of them that came from the disk.
  PerGroup<std::vector<BlockKey>> pinned = {};
  bool has_fetched = false;
  std::unordered_set<BlockKey> from_disk = {};
  // Tokens of the prompt found in the cache when it began; not set before.
  std::optional<int64_t> reused = {};
  // Tokens whose full blocks have their keys; drafts have none until they are right.
  int64_t kept = 0;
  RequestDrafts drafts = {};
  // Tokens of the prompt whose log-probabilities were reported. The first has none, as it follows
  // nothing.
  int64_t scored = 1;
};

}  // namespace spillway
