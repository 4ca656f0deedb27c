// SPDX-License-Identifier: Apache-2.0
// The engine: schedules, computes, samples and emits, step by step.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/engine_options.h"
#include "engine/engine_requests.h"
#include "engine/generation.h"
#include "engine/layer_swap_control.h"
#include "engine/prefix_reuse.h"
#include "engine/sampler.h"
#include "engine/step_clock.h"
#include "kv/block_allocator.h"
#include "kv/kv_cache.h"
#include "runtime/decoder.h"
#include "schedule/scheduler.h"
#include "text/tokenizer.h"

namespace spillway {

// Runs any number of requests over one decoder and one KV cache. Single-threaded: every method is
// called from one thread. The decoder, cache and tokenizer must outlive it; nothing else may use
// the decoder's device while it has requests.
class Engine {
 public:
  using Sink = std::function<void(const GenerationEvent&)>;

  // `tokenizer` may be null: then events carry no text, and only max_tokens ends a request.
  Engine(Decoder& decoder, KvCache& kv, const Tokenizer* tokenizer, const EngineOptions& options);
  ~Engine();

  // Throws kInvalidArgument for an empty prompt, one that leaves no room in the context or cache, a
  // token outside the vocabulary, or sampling parameters that make no sense. Nothing else is
  // disturbed.
  RequestId submit(GenerationRequest request);
  // submit() in two parts, for callers that assign the ids (each id only once): check() reads
  // nothing that changes, and any thread may call it.
  void check(const GenerationRequest& request) const;
  void submit(RequestId id, GenerationRequest request);
  // Adds the predicted length of the answer to the request if the engine predicts lengths. That
  // takes time, so call it before submit(); any thread may.
  void predict(GenerationRequest& request) const;
  // Ends the request with kCancelled at the next step; unknown ids are ignored.
  void cancel(RequestId id);
  // Takes back a request that has not begun: returns it as it was submitted, and the engine forgets
  // it without an event. Returns nothing if it has begun or is unknown.
  [[nodiscard]] std::optional<GenerationRequest> try_withdraw(RequestId id);
  // Requests that have begun and not ended.
  std::vector<RequestId> begun() const { return scheduler_.begun(); }

  // Runs one step and passes every event to `sink`. Returns false if there is nothing to do.
  // Nothing of a step that throws counts: its sequences are computed again if the caller goes on;
  // events of requests that ended before the error are passed to `sink` first. What `sink` throws
  // comes out as it is; the step's other events are then lost.
  bool step(const Sink& sink);
  // Call after a step that threw: the requests that had begun end with kError, the others stay; if
  // none had begun, all end.
  void end_begun(const Error& error, const Sink& sink);
  // Ends all requests now, with kCancelled.
  void cancel_all(const Sink& sink);

  // Called before the first step, and before each step that has prompts (or tokens computed again)
  // if the previous one had none, or the reverse. The argument says whether the step has them.
  // stats().steps then counts the steps before it. For measurements.
  using PhaseObserver = std::function<void(bool has_prompts)>;
  void observe_phases(PhaseObserver observer) { observer_ = std::move(observer); }

  const EngineStats& stats() const { return stats_; }
  EngineState state() const;
  // Returns the statistics of the KV store, which keeps KV blocks for later requests, or nothing if
  // there is none. Any thread may call it.
  std::optional<KvStoreStats> store_stats() const;
  // Returns how long each request waited that began since the last call and says when it came.
  std::vector<double> take_queue_waits() { return std::exchange(queue_waits_s_, {}); }
  // Returns the traffic since the last call, without `seconds`; waits for the device.
  EngineTraffic take_traffic();
  // Swaps the KV of this many layers from now on, as far as the cache allows. Sequences whose
  // blocks no longer fit are preempted and computed again. Throws kDevice if copies fail: then all
  // sequences are.
  void change_swapped_layers(int swapped_layers);
  bool has_requests() const { return !requests_.empty(); }
  // Call this before a thread other than the one that made the engine uses it.
  void enter_thread() { decoder_.device().enter_thread(); }
  // The longest prompt + answer a request can have.
  int64_t max_sequence_tokens() const { return max_sequence_tokens_; }

 private:
  using Request = EngineRequest;
  // The result of sampling from a request's rows of logits in one step.
  struct DrawnToken {
    Request* request;
    // Drafts that were sampled, too; they come before `sampled`.
    std::vector<SampledToken> accepted = {};
    SampledToken sampled = {};
    std::string error = {};  // why there is no token
    std::vector<Logprobs> prompt_logprobs = {};
    int32_t drafted = 0;  // how many of the sequence's rows were those of drafts
    bool draws = true;    // else there is no token, only log-probabilities of the prompt
    bool is_last = true;  // whether the step computed the last known token
  };
  // Runs one step and updates all state; appends the events for the sink to `events`.
  void advance(std::vector<GenerationEvent>& events);
  // Computes the step and samples the next token of each sequence whose last known token it
  // computes. Returns nothing if data that it needed was damaged; all sequences are then computed
  // again.
  std::optional<std::vector<DrawnToken>> try_compute(const StepPlan& plan);
  void copy_blocks(const StepPlan& plan);
  // Takes the blocks of all sequences, which are then computed again. Called after a step or copies
  // that failed.
  void lose_all();
  // Brings the counts of swapped layers, whose KV is loaded in each step, in stats_ up to date.
  void note_swaps();
  static bool is_scored(const Request& request, const ScheduledChunk& chunk);
  static int32_t logit_rows(const Request& request, const ScheduledChunk& chunk);
  // Returns the log-probabilities of the prompt tokens that the rows of a scored chunk predict;
  // nothing if a row is unusable.
  std::optional<std::vector<Logprobs>> try_score_prompt(const Request& request,
                                                        const ScheduledChunk& chunk,
                                                        const Activations& logits);
  void tell_observer(bool has_prompts);
  // Samples the next token of each request from its row of logits.
  std::vector<DrawnToken> draw(const Activations& logits, const StepPlan& plan);
  // A request's rows of logits: that of its newest token, then those of its drafts.
  struct RowsToDraw {
    Request* request;
    int32_t drafted = 0;
    size_t at = 0;  // index in the list of sampled tokens
  };
  // These two functions sample from each request's rows, up to the first draft that is not the
  // sampled token.
  void sample_on_device(const Activations& logits, std::span<const RowsToDraw> requests,
                        std::vector<DrawnToken>& drawn);
  void sample_on_host(const Activations& logits, std::span<const RowsToDraw> requests,
                      std::vector<DrawnToken>& drawn);
  // Adds the sampled tokens to the request and to `events`, one after the other, until the request
  // ends.
  void accept_tokens(DrawnToken& drawn, std::vector<GenerationEvent>& events);
  GenerationEvent accept_token(DrawnToken& drawn);
  // Returns whether there is memory for the drafts' rows of logits.
  bool can_draft();
  // Proposes drafts for the next step of each of these requests that has not ended.
  void propose_drafts(std::span<const RequestId> drawn);
  void finish(Request& request, FinishReason reason, GenerationEvent& event);
  void end_without_token(RequestId id, FinishReason reason, std::vector<GenerationEvent>& events);

  Decoder& decoder_;
  KvCache& kv_;
  const Tokenizer* tokenizer_;
  EngineRequests requests_;
  BlockAllocator allocator_;
  PrefixReuse prefixes_;
  AnswerLengths* lengths_;
  DraftOptions drafts_;
  DraftCosts draft_costs_;
  int max_sequences_;
  Scheduler scheduler_;
  int64_t max_sequence_tokens_;
  StepClock clock_;
  LayerSwapControl swapping_;
  EngineStats stats_;
  std::vector<double> queue_waits_s_;
  uint64_t next_id_ = 1;
  std::vector<RequestId> cancelled_;
  PhaseObserver observer_;
  std::optional<bool> had_prompts_;  // whether the last step had prompts; not set before the first
  static constexpr int kMostLost = 3;
  int lost_ = 0;  // steps in a row that found their KV or activations damaged
};

}  // namespace spillway
