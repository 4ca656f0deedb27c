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

#include "base/stopwatch.h"
#include "engine/draft_options.h"
#include "engine/generation.h"
#include "engine/sampler.h"
#include "engine/scheduling_options.h"
#include "kv/block_allocator.h"
#include "kv/expansion_control.h"
#include "kv/kv_cache.h"
#include "kv/kv_stores.h"
#include "runtime/decoder.h"
#include "schedule/prefix_search.h"
#include "schedule/scheduler.h"
#include "text/tokenizer.h"

namespace spillway {

class AnswerLengths;
struct EngineRequest;

struct EngineOptions {
  int max_step_tokens = 0;  // 0 = what the decoder takes
  // Of these, tokens of prompts where others generate; 0: all.
  int max_prompt_tokens = 0;
  AdmissionPolicy admission = {};
  SchedulingOptions scheduling = {};
  // Who predicts how long answers will be, and learns it; null: nobody does. Must outlive the
  // engine.
  AnswerLengths* lengths = nullptr;
  int64_t max_sequence_tokens = 0;  // prompt and answer; 0 = what the context and the cache allow
  // Of requests that begin alike, what is alike is computed once, as long as there is room for it.
  bool reuse_prefixes = false;
  // What the bits of KV depend on besides the model's name and the type of KV (Session::kv_salt()).
  std::string kv_salt = {};
  // With reuse_prefixes: where KV goes that the pools have no room for, and comes back from. None:
  // it is computed again. Must outlive the engine.
  KvStores store = {};
  // Tokens that are proposed before they are drawn, where a step with more tokens costs little
  // more.
  DraftOptions drafts = {};
  DraftCosts draft_costs = {};
  // How many layers' KV takes turns on the device is found while serving, where the cache allows
  // it; else it stays as it is.
  bool adapts_turns = false;
  // Seconds by which steps are measured, where the device has a time of its own; null: of the
  // machine's clock.
  std::function<double()> clock = {};
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
  // So many layers' KV takes turns from now on, as the cache allows; sequences whose blocks are no
  // more then are computed again. Throws kDevice where copies fail: all are.
  void change_turns(int turning);
  bool has_requests() const { return !requests_.empty(); }
  // Before a thread other than the one that made the engine uses it.
  void enter_thread() { decoder_.device().enter_thread(); }
  // The longest prompt + answer a request can have.
  int64_t max_sequence_tokens() const { return max_sequence_tokens_; }

 private:
  using Request = EngineRequest;
  // What other requests have computed.
  FoundPrefix find(RequestId id, std::span<const RequestId> beginning) const override;
  // With what the stores have behind that.
  FoundPrefix find_stored(const Request& request, const PrefixSearch& search,
                          FoundPrefix in_pools) const;
  bool loading_pays(const FoundPrefix& found, const FoundPrefix& in_pools) const;
  const BlockKey& key_before(const Request& request, size_t blocks) const;
  BlockContents contents_of(const Request& request, size_t block, int group) const;
  // Of a request's first `blocks` blocks.
  std::span<const BlockKey> keys_of(Request& request, size_t blocks) const;
  void keep_full_blocks(const StepPlan& plan);
  // Up to so many tokens, from `from` on; what is new on the device goes to `copies`.
  void keep_blocks(Request& request, const BlockTable& table, int64_t from, int64_t end,
                   std::vector<KvStore::Copy>& copies);
  // The last block, as far as `computed` tokens fill it: what goes on from here finds it.
  void keep_tail(Request& request, int64_t computed);
  // The same, and recurrent states, of one that is about to lose its blocks.
  void keep_last(Request& request, int64_t computed);
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
  // What those that are about to lose their blocks have computed is kept to the last token.
  void keep_preempted(const StepPlan& plan);
  // Between pool and store: what had to go for this step, and what it begins with.
  void move_blocks(const StepPlan& plan);
  // Of these, which the step filled, and of those that the pool gives out next.
  void store_ahead(std::span<const KvStore::Copy> filled);
  // From the disk, for those that wait.
  void start_fetches(const StepPlan& plan);
  void fetch_all(const PerGroup<std::vector<BlockKey>>& keys,
                 PerGroup<std::vector<BlockKey>>& pinned);
  void unpin_all(PerGroup<std::vector<BlockKey>>& pinned);
  void unpin(Request& request);
  void distrust(Request& request);
  void store_all_evicted();
  // The group whose layers may be swapped, and its blocks on the device.
  int swapped_group() const { return kv_.swapped_group(); }
  int32_t device_blocks() const { return allocator_.total(Tier::kDevice, swapped_group()); }
  // Of the device, to so many blocks; what is to be copied within it before it is smaller.
  std::vector<KvCache::BlockCopy> shrink_pool(int32_t blocks);
  // After a step of so many seconds, which drew so many tokens.
  void adapt_turns(const StepPlan& plan, double seconds, int64_t tokens);
  DecoderStats take_decoder_stats();
  // Of those that run, and those that could at once: blocks of KV at their peak, as predicted.
  int64_t predicted_blocks() const;
  // So many on the device would be enough for another like those that are at work elsewhere, where
  // the CPU attends or pages come over the link first. 0: there are none, or never so many.
  int32_t blocks_for_another() const;
  // Somebody waits for KV memory there, or will, or has its own elsewhere.
  bool device_is_short(const StepPlan& plan, int32_t enough_blocks) const;
  double now_s() const;
  // What newcomers compute, others that come after them need not.
  void announce(const StepPlan& plan);
  void lose_all();
  static bool is_scored(const Request& request, const ScheduledChunk& chunk);
  static int32_t logit_rows(const Request& request, const ScheduledChunk& chunk);
  void no_longer_coming(RequestId id);
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
  BlockAllocator allocator_;
  bool reuses_;
  std::unique_ptr<KvStores> store_;
  std::vector<KvStore::Copy> evicted_;  // by the step at hand
  // Copies of what the step at hand fills, which may still fail.
  std::vector<BlockKey> stored_by_step_;
  KvStoreStats counted_;  // of the store's traffic, what was told
  // What all KV depends on: the model, its type of KV and its settings.
  BlockKey base_key_;
  AnswerLengths* lengths_;
  DraftOptions drafts_;
  DraftCosts draft_costs_;
  int max_sequences_;
  Scheduler scheduler_;
  int64_t max_sequence_tokens_;
  std::function<double()> clock_;  // null: the machine's
  Stopwatch since_;
  EngineStats stats_;
  std::vector<double> queue_waits_s_;
  std::optional<ExpansionControl> expansion_;
  double turns_changed_s_ = 0;  // what the last change took, until the controller has heard of it
  DecoderStats taken_;          // of the decoder's, since the last take_traffic()
  uint64_t next_id_ = 1;
  std::map<RequestId, std::unique_ptr<Request>> requests_;
  std::vector<RequestId> cancelled_;
  // Whole blocks of prompts that are being computed, and by whom.
  std::unordered_map<BlockKey, RequestId> coming_;
  PhaseObserver observer_;
  std::optional<bool> had_prompts_;  // the last step
  static constexpr int kMostLost = 3;
  int lost_ = 0;  // steps in a row that found their KV or activations damaged
};

}  // namespace spillway
