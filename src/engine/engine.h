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
// called from one thread. The decoder, cache and tokenizer must outlive it; nobody else uses the
// decoder's device while it has requests.
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
  // The same in two parts, for who gives ids himself (one comes once): check() looks at nothing
  // that changes, and any thread may call it.
  void check(const GenerationRequest& request) const;
  void submit(RequestId id, GenerationRequest request);
  // What is predicted of its answer goes along with the request, where somebody predicts. It takes
  // time: before submit(), from any thread.
  void foresee(GenerationRequest& request) const;
  // Ends it with kCancelled at the next step; unknown ids are ignored.
  void cancel(RequestId id);
  // A request that has not begun, as it was submitted: the engine forgets it, without an event.
  // None where it has begun or is unknown.
  [[nodiscard]] std::optional<GenerationRequest> try_withdraw(RequestId id);
  // Requests that have begun and not ended.
  std::vector<RequestId> begun() const { return scheduler_.begun(); }

  // One step: every event goes to `sink`. False when there is nothing to do. Of a step that throws
  // nothing counts: its sequences are computed again, should anybody go on; requests that ended
  // before it are told first. What `sink` throws comes out as it is; the step's other events are
  // then lost.
  bool step(const Sink& sink);
  // After a step that threw: those that were being computed end with kError, the others stay;
  // where none was, all end.
  void end_begun(const Error& error, const Sink& sink);
  // Now, with kCancelled: nothing is left to do.
  void cancel_all(const Sink& sink);

  // Called before each step that has prompts (or what is computed again) after one that has not, or
  // the other way round, and before the first: whether it has. stats().steps are those before. For
  // measurements.
  using PhaseObserver = std::function<void(bool has_prompts)>;
  void observe_phases(PhaseObserver observer) { observer_ = std::move(observer); }

  const EngineStats& stats() const { return stats_; }
  EngineState state() const;
  // Of the KV store; none where there is none. From any thread.
  std::optional<KvStoreStats> store_stats() const;
  // Of requests that began since the last call and say when they came: how long each had waited.
  std::vector<double> take_queue_waits() { return std::exchange(queue_waits_s_, {}); }
  // Since the last call, but for its seconds; waits for the device.
  EngineTraffic take_traffic();
  // Swaps the KV of this many layers from now on, as far as the cache allows. Sequences whose
  // blocks no longer fit are preempted and computed again. Throws kDevice if copies fail: then all
  // are.
  void change_turns(int turning);
  bool has_requests() const { return !requests_.empty(); }
  // Before a thread other than the one that made the engine uses it.
  void enter_thread() { decoder_.device().enter_thread(); }
  // The longest prompt + answer a request can have.
  int64_t max_sequence_tokens() const { return max_sequence_tokens_; }

 private:
  using Request = EngineRequest;
  // What came of a request's row of logits.
  struct DrawnToken {
    Request* request;
    std::vector<SampledToken> accepted = {};  // drafts that were drawn, too; before `sampled`
    SampledToken sampled = {};
    std::string error = {};  // why there is no token
    std::vector<Logprobs> prompt_logprobs = {};
    int32_t drafted = 0;  // of the sequence's rows, those of drafts
    bool draws = true;    // else there is no token, only what was said of the prompt
    bool is_last = true;  // of the tokens known
  };
  // Keeps the books of one step; what the sink is to be told goes to `events`.
  void advance(std::vector<GenerationEvent>& events);
  // Computes the step and draws the next token of each sequence that it brings to its end. None
  // where what it needed was damaged, and all sequences are computed again.
  std::optional<std::vector<DrawnToken>> try_compute(const StepPlan& plan);
  void copy_blocks(const StepPlan& plan);
  // All sequences lose their blocks and are computed again: after a step or copies that failed.
  void lose_all();
  // Brings the counts of layer swapping in stats_ up to date.
  void note_swaps();
  static bool is_scored(const Request& request, const ScheduledChunk& chunk);
  static int32_t logit_rows(const Request& request, const ScheduledChunk& chunk);
  // What rows of logits say of the prompt's tokens behind them, of a chunk that is scored; nothing
  // where a row is unusable.
  std::optional<std::vector<Logprobs>> try_score_prompt(const Request& request,
                                                        const ScheduledChunk& chunk,
                                                        const Activations& logits);
  void tell_observer(bool has_prompts);
  // From its row of logits, the next token of each request.
  std::vector<DrawnToken> draw(const Activations& logits, const StepPlan& plan);
  // A request's rows of logits: that of its newest token, then those of its drafts.
  struct RowsToDraw {
    Request* request;
    int32_t drafted = 0;
    size_t at = 0;  // in the list of drawn tokens
  };
  // What is drawn from these rows, up to the first draft that is another token.
  void sample_on_device(const Activations& logits, std::span<const RowsToDraw> requests,
                        std::vector<DrawnToken>& drawn);
  void sample_on_host(const Activations& logits, std::span<const RowsToDraw> requests,
                      std::vector<DrawnToken>& drawn);
  // Tells of the drawn tokens, one after the other, until the request ends.
  void accept_tokens(DrawnToken& drawn, std::vector<GenerationEvent>& events);
  GenerationEvent accept_token(DrawnToken& drawn);
  // Whether there is memory for their rows of logits.
  bool can_draft();
  // For the next step of each of these requests that has not ended.
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
  std::optional<bool> had_prompts_;  // the last step
  static constexpr int kMostLost = 3;
  int lost_ = 0;  // steps in a row that found their KV or activations damaged
};

}  // namespace spillway
