// SPDX-License-Identifier: Apache-2.0
// The loop: schedule, step, sample, emit.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/sampler.h"
#include "kv/block_allocator.h"
#include "kv/kv_cache.h"
#include "runtime/decoder.h"
#include "schedule/scheduler.h"
#include "text/tokenizer.h"

namespace spillway {

enum class FinishReason : uint8_t {
  kStop,       // an end token or a stop string
  kLength,     // max_tokens, the model's context, or the KV cache is full
  kCancelled,  // by cancel()
  kError,      // this sequence's logits were unusable; the others go on
};
const char* finish_reason_name(FinishReason reason);

struct GenerationRequest {
  std::vector<TokenId> prompt;  // not empty
  int max_tokens = 128;         // generated at most
  SamplingParams sampling;
  std::vector<std::string> stop;  // the text ends before the first of them
  bool ignore_end = false;        // go on past end tokens
};

// A token was generated, or a request ended (then `finish` is set; the last token may come with
// it).
struct GenerationEvent {
  RequestId id{};
  std::optional<TokenId> token;
  std::string
      text;  // complete characters that are safe to show; may be empty, or stand for several tokens
  std::optional<Logprobs> logprobs;
  std::optional<FinishReason> finish;
  std::string error;  // why, when it ended with kError
};

struct EngineOptions {
  int max_step_tokens = 0;  // 0 = what the decoder takes
  AdmissionPolicy admission = {};
  int64_t max_sequence_tokens = 0;  // prompt and answer; 0 = what the context and the cache allow
  // Of requests that begin alike, what is alike is computed once, as long as there is room for it.
  bool reuse_prefixes = false;
};

struct EngineStats {
  int64_t steps = 0;
  int64_t prompt_tokens = 0;  // computed in prefill, recomputation after preemption included
  int64_t generated_tokens = 0;
  int64_t reused_tokens = 0;  // found in the cache instead of computed
  int64_t preemptions = 0;
  int64_t sequence_steps = 0;  // sequences at work, summed over these steps
};

// Runs any number of requests over one decoder and one KV cache. Single-threaded: every method is
// called from one thread. The decoder, cache and tokenizer must outlive it; nobody else uses the
// decoder's device while it has requests.
class Engine : private PrefixSource {
 public:
  using Sink = std::function<void(const GenerationEvent&)>;

  // `tokenizer` may be null: then events carry no text, and only max_tokens ends a request.
  Engine(Decoder& decoder, KvCache& kv, const Tokenizer* tokenizer, const EngineOptions& options);
  ~Engine() override;

  // Throws kInvalidArgument for an empty prompt, one that leaves no room in the context or cache, a
  // token outside the vocabulary, or sampling parameters that make no sense. Nothing else is
  // disturbed.
  RequestId submit(GenerationRequest request);
  // Ends it with kCancelled at the next step; unknown ids are ignored.
  void cancel(RequestId id);

  // One step: every event goes to `sink`. False when there is nothing to do. Of a step that throws
  // nothing counts: its sequences are computed again, should anybody go on; requests that ended
  // before it are told first. What `sink` throws comes out as it is; the step's other events are
  // then lost.
  bool step(const Sink& sink);

  // Called before each step that has prompts (or what is computed again) after one that has not, or
  // the other way round, and before the first: whether it has. stats().steps are those before. For
  // measurements.
  using PhaseObserver = std::function<void(bool has_prompts)>;
  void observe_phases(PhaseObserver observer) { observer_ = std::move(observer); }

  const EngineStats& stats() const { return stats_; }
  // The longest prompt + answer a request can have.
  int64_t max_sequence_tokens() const { return max_sequence_tokens_; }

 private:
  struct Request;
  // Whole blocks that other requests have computed.
  int32_t begin(RequestId id, BlockTable& blocks) override;
  // Of a request's first `blocks` blocks.
  std::span<const BlockKey> keys_of(Request& request, size_t blocks);
  void keep_full_blocks(const StepPlan& plan);
  // What came of a request's row of logits.
  struct DrawnToken {
    Request* request;
    SampledToken sampled;
    std::string error = {};  // why there is no token
  };
  // Keeps the books of one step; what the sink is to be told goes to `events`.
  void advance(std::vector<GenerationEvent>& events);
  // Computes the step and draws the next token of each sequence that it brings to its end. None
  // where what it needed was damaged, and all sequences are computed again.
  std::optional<std::vector<DrawnToken>> try_compute(const StepPlan& plan);
  void tell_observer(bool has_prompts);
  // From its row of logits, the next token of each request.
  std::vector<DrawnToken> draw(const Activations& logits, std::span<Request* const> requests);
  std::vector<SampledToken> sample_on_device(const Activations& logits,
                                             std::span<Request* const> requests);
  std::vector<SampledToken> sample_on_host(const Activations& logits,
                                           std::span<Request* const> requests);
  GenerationEvent accept_token(DrawnToken& drawn);
  void finish(Request& request, FinishReason reason, GenerationEvent& event);
  void end_without_token(RequestId id, FinishReason reason, std::vector<GenerationEvent>& events);

  Decoder& decoder_;
  KvCache& kv_;
  const Tokenizer* tokenizer_;
  BlockAllocator allocator_;
  bool reuses_;
  BlockKey first_key_;
  Scheduler scheduler_;
  int64_t max_sequence_tokens_;
  EngineStats stats_;
  uint64_t next_id_ = 1;
  std::map<RequestId, std::unique_ptr<Request>> requests_;
  std::vector<RequestId> cancelled_;
  PhaseObserver observer_;
  std::optional<bool> had_prompts_;  // the last step
  static constexpr int kMostLost = 3;
  int lost_ = 0;  // steps in a row that found their KV or activations damaged
};

}  // namespace spillway
