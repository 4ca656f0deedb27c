// SPDX-License-Identifier: Apache-2.0
#include "engine/engine.h"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/stopwatch.h"
#include "engine/answer_lengths.h"
#include "engine/draft_sources.h"
#include "engine/engine_request.h"

namespace spillway {

namespace {

// An option of 0 leaves the limit as it is.
template <class T>
T at_most(T limit, T option) {
  return option > 0 ? std::min(limit, option) : limit;
}

constexpr int kLeastLogitRows = 32;
constexpr std::chrono::milliseconds kLongestWait{20};  // a request may be cancelled meanwhile

SchedulingPolicies policies_of(const EngineOptions& options, const KvCache& kv) {
  // A preempted sequence keeps its KV only if the store holds copies of its device blocks.
  const bool keeps = !options.store.empty() && kv.host_blocks() + kv.disk_blocks() == 0;
  return make_policies(options.scheduling, options.admission, keeps);
}

}  // namespace

Engine::Engine(Decoder& decoder, KvCache& kv, const Tokenizer* tokenizer,
               const EngineOptions& options)
    : decoder_(decoder),
      kv_(kv),
      tokenizer_(tokenizer),
      allocator_(kv.group_pools(), decoder.span_blocks(),
                 at_most(decoder.max_tokens(), options.max_step_tokens)),
      prefixes_(decoder, kv, allocator_, requests_, options),
      lengths_(options.lengths),
      drafts_(options.drafts),
      draft_costs_(options.draft_costs),
      max_sequences_(options.admission.max_sequences),
      scheduler_(allocator_,
                 {.max_step_tokens = at_most(decoder.max_tokens(), options.max_step_tokens),
                  .max_prompt_tokens = options.max_prompt_tokens,
                  .max_logit_rows = std::max(kLeastLogitRows, options.admission.max_sequences),
                  .admission = options.admission},
                 options.reuse_prefixes ? &prefixes_ : nullptr, policies_of(options, kv)),
      max_sequence_tokens_(at_most(std::min(decoder.spec().max_context, allocator_.longest()),
                                   options.max_sequence_tokens)),
      clock_(options.clock),
      swapping_(decoder, kv, allocator_, scheduler_, prefixes_, requests_, clock_, options,
                [this] { lose_all(); }) {
  prefixes_.attach(scheduler_);
  if (drafts_.is_on() && !can_draft()) drafts_ = {};
}

Engine::~Engine() = default;

void Engine::check(const GenerationRequest& request) const {
  const int64_t vocab = decoder_.spec().vocab_size;
  SPW_CHECK(!request.prompt.empty(), kInvalidArgument,
            "the prompt is empty; give at least one token");
  const bool scored = request.prompt_logprobs >= 0;
  SPW_CHECK(request.max_tokens >= (scored ? 0 : 1), kInvalidArgument,
            "{} tokens to generate; give 1 or more", request.max_tokens);
  SPW_CHECK(request.prompt_logprobs <= kMostLogprobs, kInvalidArgument,
            "{} log-probabilities of each token; give at most {}", request.prompt_logprobs,
            kMostLogprobs);
  for (const TokenId id : request.prompt) {
    SPW_CHECK(id >= 0 && id < vocab, kInvalidArgument,
              "token id {} in the prompt is outside the model's vocabulary of {} tokens", id,
              vocab);
  }
  const int64_t least = request.max_tokens > 0 ? 1 : 0;
  SPW_CHECK(static_cast<int64_t>(request.prompt.size()) + least <= max_sequence_tokens(),
            kInvalidArgument,
            "the maximum context length is {} tokens, but the prompt has {} and needs room for at "
            "least one more; shorten it",
            max_sequence_tokens(), request.prompt.size());
  validate(request.sampling, vocab);
  for (const TokenId id : request.stop_ids) {
    SPW_CHECK(id >= 0 && id < vocab, kInvalidArgument,
              "stop token id {} is outside the model's vocabulary of {} tokens", id, vocab);
  }
  SPW_CHECK(request.min_tokens >= 0 && request.min_tokens <= request.max_tokens, kInvalidArgument,
            "at least {} tokens to generate; give 0 to {}, which there may be at most",
            request.min_tokens, request.max_tokens);
}

RequestId Engine::submit(GenerationRequest request) {
  check(request);
  const auto id = RequestId{next_id_++};
  submit(id, std::move(request));
  return id;
}

void Engine::submit(RequestId id, GenerationRequest request) {
  const auto prompt_tokens = static_cast<int32_t>(request.prompt.size());
  const int64_t expected =
      std::min(max_sequence_tokens(), int64_t{prompt_tokens} + request.max_tokens);
  const NewSequence sequence{
      .id = id,
      .tokens = prompt_tokens,
      .expected = expected,
      .predicted = request.prediction.tokens > 0 ? prompt_tokens + request.prediction.tokens : 0,
      .priority = request.priority,
      .client = request.client,
      .user = request.user,
      .scored = request.prompt_logprobs >= 0};
  const auto added =
      requests_
          .emplace(id, std::make_unique<Request>(id, std::move(request), prefixes_.base_key(),
                                                 tokenizer_, decoder_.spec().vocab_size))
          .first;
  added->second->drafts.source = make_draft_source(drafts_, static_cast<uint64_t>(id));
  try {
    scheduler_.add(sequence);
  } catch (...) {
    requests_.erase(added);  // most likely out of memory: the request was never submitted
    throw;
  }
}

void Engine::predict(GenerationRequest& request) const {
  if (lengths_ != nullptr) {
    lengths_->predict(request);
  } else {
    request.asked.clear();  // only a prediction needs the text
  }
}

void Engine::end_begun(const Error& error, const Sink& sink) {
  std::vector<RequestId> ids = scheduler_.begun();
  if (ids.empty())
    for (const auto& [id, request] : requests_) ids.push_back(id);
  for (const RequestId id : ids) {
    GenerationEvent event;
    event.id = id;
    event.error = error.what();
    event.error_code = error.code();
    event.step_failed = true;
    finish(*requests_.at(id), FinishReason::kError, event);
    sink(event);
  }
}

void Engine::cancel_all(const Sink& sink) {
  cancelled_.clear();
  std::vector<GenerationEvent> events;
  while (!requests_.empty())
    end_without_token(requests_.begin()->first, FinishReason::kCancelled, events);
  for (const GenerationEvent& event : events) sink(event);
}

void Engine::note_swaps() {
  const SwapCounts& swaps = swapping_.counts();
  stats_.layer_swap_bytes = swaps.bytes;
  stats_.layer_swaps_ahead = swaps.ahead;
  stats_.layer_swaps_early = swaps.early;
  stats_.layer_swap_waits = swaps.waits;
  stats_.layer_swap_waited_s = swaps.waited_s;
  stats_.layer_swap_changes = swaps.changes;
  stats_.layer_swap_changes_s = swaps.changes_s;
}

EngineTraffic Engine::take_traffic() {
  const DecoderStats stats = swapping_.take_decoder_stats();
  note_swaps();
  const StoreTraffic stores = prefixes_.take_store_traffic();
  const bool is_discrete = !decoder_.device().host_visible();
  return {.to_gpu_bytes = (is_discrete ? stores.to_device : 0) + stats.weights.host_bytes +
                          stats.swap.to_device_bytes + stats.layer_swaps.to_device_bytes +
                          stats.activations.to_device_bytes + stats.host_attention.to_device_bytes +
                          stats.host_linear.to_device_bytes,
          .to_host_bytes = (is_discrete ? stores.to_host : 0) + stats.swap.to_host_bytes +
                           stats.layer_swaps.to_host_bytes + stats.activations.to_host_bytes +
                           stats.host_attention.to_host_bytes + stats.host_linear.to_host_bytes,
          .disk_read_bytes = stores.disk_read + stats.weights.disk_bytes +
                             stats.swap.disk_read_bytes + stats.activations.disk_read_bytes,
          .disk_write_bytes = stores.disk_written + stats.swap.disk_written_bytes +
                              stats.activations.disk_written_bytes,
          .stalled_s = std::accumulate(stats.stall_s.begin(), stats.stall_s.end(), 0.0),
          .transfers = decoder_.transfers().stats()};
}

std::optional<KvStoreStats> Engine::store_stats() const { return prefixes_.store_stats(); }

EngineState Engine::state() const {
  EngineState state{.running = scheduler_.running(), .waiting = scheduler_.waiting()};
  for (const Tier pool : allocator_.pools())
    state.kv.push_back({allocator_.total(pool, allocator_.forecast_group()),
                        allocator_.free(pool, allocator_.forecast_group())});
  state.store = store_stats();
  const LayerTable& layers = kv_.layers();
  state.swapped_layers = layers.swapped_count();
  if (lengths_ != nullptr) {
    state.lengths = lengths_->counts();
    state.predicted_blocks = swapping_.predicted_blocks();
  }
  if (layers.sizes().blocks > 0)
    state.kv_expansion = static_cast<double>(layers.blocks()) / layers.sizes().blocks;
  return state;
}

void Engine::change_swapped_layers(int swapped_layers) {
  swapping_.change(swapped_layers);
  note_swaps();
}

void Engine::cancel(RequestId id) { cancelled_.push_back(id); }

std::optional<GenerationRequest> Engine::try_withdraw(RequestId id) {
  const auto it = requests_.find(id);
  if (it == requests_.end() || scheduler_.has_begun(id)) return std::nullopt;
  GenerationRequest request = std::move(it->second->params);
  prefixes_.release(*it->second);
  scheduler_.remove(id, 0);
  requests_.erase(it);
  return request;
}

bool Engine::step(const Sink& sink) {
  // All state is updated first, so that it is right whatever a sink does.
  std::vector<GenerationEvent> events;
  const auto tell = [&] {
    for (const GenerationEvent& event : events) sink(event);
  };
  try {
    advance(events);
  } catch (...) {
    tell();
    throw;
  }
  decoder_.transfers().issue_copies_out(/*all=*/requests_.empty());
  tell();
  return !requests_.empty();
}

void Engine::advance(std::vector<GenerationEvent>& events) {
  const double begun_s = clock_.now_s();
  for (const RequestId id : std::exchange(cancelled_, {}))
    end_without_token(id, FinishReason::kCancelled, events);
  const Stopwatch scheduling;
  scheduler_.release_behind();
  StepPlan plan = scheduler_.prepare();
  prefixes_.keep_preempted(plan);
  scheduler_.apply(plan);
  stats_.scheduling_s += scheduling.seconds();
  prefixes_.note_admitted(plan);
  stats_.preemptions = scheduler_.preemptions();
  stats_.exceeded_preemptions = scheduler_.exceeded_preemptions();
  for (const RequestId id : plan.exhausted) end_without_token(id, FinishReason::kLength, events);
  if (plan.chunks.empty()) {
    // Every waiting request waits for the disk.
    prefixes_.wait_for_disk(plan, kLongestWait);
    return;
  }
  std::optional<std::vector<DrawnToken>> drawn = try_compute(plan);
  if (!drawn) return;
  const size_t told = events.size();
  std::vector<RequestId> ids;
  for (DrawnToken& token : *drawn) {
    ids.push_back(token.request->id);
    accept_tokens(token, events);
  }
  propose_drafts(ids);
  stats_.predictions_exceeded = scheduler_.extensions();
  stats_.recomputed_tokens = scheduler_.recomputed_tokens();
  const double seconds = clock_.now_s() - begun_s;
  swapping_.step_done(plan, seconds, static_cast<int64_t>(events.size() - told));
  note_swaps();
}

std::optional<std::vector<Engine::DrawnToken>> Engine::try_compute(const StepPlan& plan) {
  std::vector<StepSequence> sequences;
  std::vector<std::vector<TokenId>> with_drafts;  // tokens of the sequences that have drafts
  bool has_prompts = false;
  int64_t prompt_tokens = 0;
  for (const ScheduledChunk& chunk : plan.chunks) {
    Request& request = *requests_.at(chunk.id);
    auto tokens = std::span<const TokenId>(request.tokens)
                      .subspan(static_cast<size_t>(chunk.start),
                               static_cast<size_t>(chunk.tokens - chunk.drafted));
    if (chunk.drafted > 0) {
      std::vector<TokenId>& all = with_drafts.emplace_back(tokens.begin(), tokens.end());
      const std::vector<TokenId>& drafts = request.drafts.next;
      all.insert(all.end(), drafts.begin(), drafts.begin() + chunk.drafted);
      tokens = all;
    }
    sequences.push_back(
        {tokens, chunk.start, *chunk.block_table, logit_rows(request, chunk), chunk.generates});
    for (int group = 1; group < kv_.groups(); ++group)
      sequences.back().other_tables[static_cast<size_t>(group - 1)] = chunk.table->blocks(group);
    const bool in_prompt = chunk.start < static_cast<int32_t>(request.params.prompt.size());
    if (in_prompt) prompt_tokens += chunk.tokens;
    has_prompts = has_prompts || !chunk.generates;
  }
  tell_observer(has_prompts);
  try {
    prefixes_.fill_blocks(plan);
    stats_.reused_host_tokens = prefixes_.stored_reuse().host_tokens;
    stats_.reused_disk_tokens = prefixes_.stored_reuse().disk_tokens;
    copy_blocks(plan);
    const auto begins = std::chrono::steady_clock::now();
    const Activations logits = decoder_.step(kv_, sequences);
    prefixes_.keep_full_blocks(plan);  // while the device computes
    std::vector<DrawnToken> drawn = draw(logits, plan);
    prefixes_.step_done();
    for (const ScheduledChunk& chunk : plan.chunks) {
      stats_.reused_tokens += chunk.reused;
      // A preempted request finds its own KV again, so only its first beginning counts.
      Request& request = *requests_.at(chunk.id);
      if (request.reused) continue;
      request.reused = chunk.reused;
      if (request.params.came != std::chrono::steady_clock::time_point())
        queue_waits_s_.push_back(
            std::chrono::duration<double>(begins - request.params.came).count());
    }
    lost_ = 0;
    ++stats_.steps;
    stats_.prompt_steps += has_prompts ? 1 : 0;
    stats_.prompt_tokens += prompt_tokens;
    stats_.sequence_steps += scheduler_.running();
    return drawn;
  } catch (const Error& error) {
    // The step's KV was not computed, and earlier KV may be wrong, too.
    lose_all();
    // KV or activations read back from the disk differ from what was written. Nothing computed with
    // them was kept, and all of it can be computed again.
    if (error.code() != ErrorCode::kCorrupt || ++lost_ > kMostLost) throw;
    log_warning("{}; the sequences are computed again", error.what());
    return std::nullopt;
  } catch (...) {
    lose_all();
    throw;
  }
}

void Engine::tell_observer(bool has_prompts) {
  if (std::exchange(had_prompts_, has_prompts) != has_prompts && observer_) observer_(has_prompts);
}

void Engine::copy_blocks(const StepPlan& plan) {
  const auto release = [&](const StepPlan* of) { scheduler_.release_copies(*of); };
  const std::unique_ptr<const StepPlan, decltype(release)> held(&plan, release);
  for (const StepPlan::Copy& copy : plan.copies)
    kv_.copy_block(decoder_.device(), copy.from.in<Tier::kDevice>(), copy.to.in<Tier::kDevice>());
}

void Engine::lose_all() {
  allocator_.forget_all();
  scheduler_.preempt_all();
  prefixes_.lose_all();
}

GenerationEvent Engine::accept_token(DrawnToken& drawn) {
  Request& request = *drawn.request;
  GenerationEvent event;
  event.id = request.id;
  if (!drawn.error.empty()) {
    event.error = std::move(drawn.error);
    prefixes_.invalidate(request);  // its KV may be wrong, and other requests could reuse it
    finish(request, FinishReason::kError, event);
    return event;
  }
  request.scored += static_cast<int64_t>(drawn.prompt_logprobs.size());
  event.prompt_logprobs = std::move(drawn.prompt_logprobs);
  if (!drawn.draws) {
    if (drawn.is_last) finish(request, FinishReason::kLength, event);
    return event;
  }
  const TokenId token = drawn.sampled.id;
  ++stats_.generated_tokens;
  request.sampler.accept(token);
  request.tokens.push_back(token);
  event.token = token;
  if (request.sampler.wants_logprobs()) event.logprobs = std::move(drawn.sampled.logprobs);

  const bool end = std::ranges::find(request.end_ids, token) != request.end_ids.end();
  if (request.detokenizer && !end) {
    const std::string text = request.detokenizer->push(token);
    // Stop strings are looked for only after the first min_tokens tokens.
    event.text = request.generated() > request.params.min_tokens ? request.stops.push(text) : text;
  }
  if (end || request.stops.stopped()) {
    finish(request, FinishReason::kStop, event);
  } else if (request.generated() >= request.params.max_tokens ||
             request.next_position() >= max_sequence_tokens()) {
    finish(request, FinishReason::kLength, event);
  }
  return event;
}

// Completes the last event and forgets the request; `request` is gone afterwards.
void Engine::finish(Request& request, FinishReason reason, GenerationEvent& event) {
  if (request.detokenizer) {
    event.text += request.stops.push(request.detokenizer->flush());
    event.text += request.stops.flush();
  }
  event.finish = reason;
  event.reused_tokens = request.reused.value_or(0);
  event.draft_accepted = request.drafts.accepted;
  event.draft_rejected = request.drafts.proposed - request.drafts.accepted;
  const RequestId id = request.id;
  prefixes_.release(request);
  // The KV of the last token was never computed.
  if (event.token && reason != FinishReason::kError)
    prefixes_.keep_last(request, request.next_position() - 1);
  if (lengths_ != nullptr) lengths_->ended(request.params, request.generated(), reason);
  scheduler_.remove(id, request.generated());
  requests_.erase(id);
}

void Engine::end_without_token(RequestId id, FinishReason reason,
                               std::vector<GenerationEvent>& events) {
  const auto it = requests_.find(id);
  if (it == requests_.end()) return;
  GenerationEvent event;
  event.id = id;
  finish(*it->second, reason, event);
  events.push_back(std::move(event));
}

}  // namespace spillway
