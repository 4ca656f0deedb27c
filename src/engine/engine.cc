// SPDX-License-Identifier: Apache-2.0
#include "engine/engine.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "engine/stop_matcher.h"
#include "engine/unusable_logits.h"
#include "text/detokenizer.h"

namespace spillway {

const char* finish_reason_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kCancelled:
      return "cancelled";
    case FinishReason::kError:
      return "error";
  }
  return "unknown";
}

namespace {

// An option of 0 leaves the limit as it is.
template <class T>
T at_most(T limit, T option) {
  return option > 0 ? std::min(limit, option) : limit;
}

}  // namespace

struct Engine::Request {
  Request(RequestId request_id, GenerationRequest request, const Tokenizer* tokenizer)
      : id(request_id),
        params(std::move(request)),
        tokens(params.prompt),
        sampler(params.sampling, params.prompt),
        stops(params.stop) {
    // The answer continues the prompt, so its leading space is kept.
    if (tokenizer != nullptr) detokenizer.emplace(*tokenizer, DecodeOptions{.continues = true});
  }
  int64_t generated() const { return static_cast<int64_t>(tokens.size() - params.prompt.size()); }

  RequestId id;
  GenerationRequest params;
  std::vector<TokenId> tokens;  // prompt and answer
  Sampler sampler;
  StopMatcher stops;
  std::optional<IncrementalDetokenizer> detokenizer;
};

Engine::Engine(Decoder& decoder, KvCache& kv, const Tokenizer* tokenizer,
               const EngineOptions& options)
    : decoder_(decoder),
      kv_(kv),
      tokenizer_(tokenizer),
      allocator_(kv.pools()),
      scheduler_(allocator_,
                 {.max_step_tokens = at_most(decoder.max_tokens(), options.max_step_tokens),
                  .max_sequences = options.max_sequences,
                  .max_admissions = options.max_admissions,
                  .stagger = options.stagger,
                  .admit_in_blocks = options.admit_in_blocks,
                  .prompts_first = options.prompts_first}),
      max_sequence_tokens_(at_most(
          std::min(decoder.spec().max_context, int64_t{allocator_.largest_pool()} * kKvBlockTokens),
          options.max_sequence_tokens)) {}

Engine::~Engine() = default;

RequestId Engine::submit(GenerationRequest request) {
  const int64_t vocab = decoder_.spec().vocab_size;
  SPW_CHECK(!request.prompt.empty(), kInvalidArgument,
            "the prompt is empty; give at least one token");
  SPW_CHECK(request.max_tokens >= 1, kInvalidArgument, "{} tokens to generate; give 1 or more",
            request.max_tokens);
  for (const TokenId id : request.prompt) {
    SPW_CHECK(id >= 0 && id < vocab, kInvalidArgument,
              "token id {} in the prompt is outside the model's vocabulary of {} tokens", id,
              vocab);
  }
  SPW_CHECK(static_cast<int64_t>(request.prompt.size()) < max_sequence_tokens(), kInvalidArgument,
            "the prompt has {} tokens and needs room for at least one more, but the context has "
            "room for {}; "
            "shorten it",
            request.prompt.size(), max_sequence_tokens());
  validate(request.sampling, vocab);

  const auto id = RequestId{next_id_++};
  const auto prompt_tokens = static_cast<int32_t>(request.prompt.size());
  const int64_t expected =
      std::min(max_sequence_tokens(), int64_t{prompt_tokens} + request.max_tokens);
  requests_.emplace(id, std::make_unique<Request>(id, std::move(request), tokenizer_));
  scheduler_.add(id, prompt_tokens, expected);
  return id;
}

void Engine::cancel(RequestId id) { cancelled_.push_back(id); }

bool Engine::step(const Sink& sink) {
  // The books first: they are right whatever a sink does.
  std::vector<GenerationEvent> events;
  std::exception_ptr failure;
  try {
    advance(events);
  } catch (...) {
    failure = std::current_exception();
  }
  for (const GenerationEvent& event : events) sink(event);
  if (failure) std::rethrow_exception(failure);
  return !requests_.empty();
}

void Engine::advance(std::vector<GenerationEvent>& events) {
  for (const RequestId id : std::exchange(cancelled_, {}))
    end_without_token(id, FinishReason::kCancelled, events);
  std::optional<QueuedStep> step = std::exchange(queued_, std::nullopt);
  const auto is_here = [&](RequestId id) { return requests_.contains(id); };
  if (step && std::none_of(step->drawing.begin(), step->drawing.end(), is_here)) step.reset();
  if (!step) {
    const StepPlan plan = scheduler_.next_step();
    stats_.preemptions = scheduler_.preemptions();
    for (const RequestId id : plan.exhausted) end_without_token(id, FinishReason::kLength, events);
    step = try_queue_step(plan, nullptr);
    if (!step) return;
  }
  const bool goes_on = try_go_on(*step);
  std::exception_ptr failure;
  if (goes_on) {
    try {
      queued_ = try_queue_step(scheduler_.next_step(), &*step);
    } catch (...) {
      failure = std::current_exception();  // of the next step: this one's tokens are good
    }
  }
  std::vector<DrawnToken> drawn;
  try {
    drawn = draw(*step);
  } catch (...) {
    queued_.reset();
    for (const auto& [id, request] : requests_)
      scheduler_.set_known(id, static_cast<int32_t>(request->tokens.size()));
    scheduler_.preempt_all();
    throw;
  }
  for (size_t i = 0; i < drawn.size(); ++i) {
    // One that was cancelled meanwhile has no use for its token.
    const auto it = requests_.find(step->drawing[i]);
    if (it != requests_.end()) events.push_back(accept_token(*it->second, drawn[i], goes_on));
  }
  // A step that nobody needs any more may fail.
  if (failure && !requests_.empty()) std::rethrow_exception(failure);
}

std::optional<Engine::QueuedStep> Engine::try_queue_step(const StepPlan& plan,
                                                         const QueuedStep* before) {
  if (plan.chunks.empty()) return std::nullopt;
  QueuedStep step;
  std::vector<StepSequence> sequences;
  std::vector<TokenId> unknown(plan.chunks.size());
  std::vector<SampleRow> rows;
  bool on_device = decoder_.device().ops().can_sample();
  for (size_t i = 0; i < plan.chunks.size(); ++i) {
    const ScheduledChunk& chunk = plan.chunks[i];
    Request& request = *requests_.at(chunk.id);
    std::span<const TokenId> tokens(request.tokens);
    if (before == nullptr) {
      tokens = tokens.subspan(static_cast<size_t>(chunk.start), static_cast<size_t>(chunk.tokens));
    } else {
      SPW_ASSERT(before->drawing.at(i) == chunk.id && chunk.tokens == 1);
      unknown[i] = drawn_id(static_cast<int32_t>(i));
      tokens = {&unknown[i], 1};
    }
    sequences.push_back({tokens, chunk.start, *chunk.block_table, chunk.last ? 1 : 0});
    const bool in_prompt = chunk.start < static_cast<int32_t>(request.params.prompt.size());
    if (in_prompt) stats_.prompt_tokens += chunk.tokens;
    step.has_prompts = step.has_prompts || in_prompt || chunk.tokens > 1;
    if (!chunk.last) continue;
    step.drawing.push_back(chunk.id);
    on_device = on_device && !request.sampler.wants_logprobs();
    if (on_device) rows.push_back(request.sampler.sample_row(chunk.start + chunk.tokens));
  }
  if (std::exchange(had_prompts_, step.has_prompts) != step.has_prompts && observer_)
    observer_(step.has_prompts);
  try {
    step.logits = decoder_.step(kv_, sequences);
    if (on_device && !rows.empty()) step.draw = decoder_.device().ops().draw(step.logits, rows);
    lost_ = 0;
  } catch (const Error& error) {
    // What was to be computed was not.
    scheduler_.preempt_all();
    // KV or activations that came back from the disk other than they went there: nothing wrong was
    // computed with them and kept, and all of it can be computed again.
    if (error.code() != ErrorCode::kCorrupt || ++lost_ > kMostLost) throw;
    log_warning("{}; the sequences are computed again", error.what());
    return std::nullopt;
  } catch (...) {
    scheduler_.preempt_all();
    throw;
  }
  ++stats_.steps;
  stats_.sequence_steps += scheduler_.running();
  return step;
}

bool Engine::try_go_on(const QueuedStep& step) {
  // Not behind a prompt: its first token is waited for, and the first step of its kind takes longer
  // to queue.
  if (!step.draw || step.has_prompts || !decoder_.runs_ahead(kv_)) return false;
  if (static_cast<int>(step.drawing.size()) != scheduler_.running()) return false;
  for (const RequestId id : step.drawing) {
    const auto it = requests_.find(id);
    if (it == requests_.end()) return false;
    const Request& request = *it->second;
    if (request.sampler.has_penalties() || ends_by_length(request, 1)) return false;
  }
  return scheduler_.try_go_on();
}

bool Engine::ends_by_length(const Request& request, int64_t more) const {
  return request.generated() + more >= request.params.max_tokens ||
         static_cast<int64_t>(request.tokens.size()) + more >= max_sequence_tokens();
}

std::vector<Engine::DrawnToken> Engine::draw(const QueuedStep& step) {
  const Activations& logits = step.logits;
  const size_t count = step.drawing.size();
  std::vector<DrawnToken> drawn(count);
  if (count == 0) return drawn;
  SPW_ASSERT(step.draw || !queued_);  // who draws on the host has waited for nobody to run ahead
  Device& device = decoder_.device();
  const auto one = [&](size_t i, auto&& f) {
    const auto it = requests_.find(step.drawing[i]);
    if (it == requests_.end()) return;
    try {
      f(*it->second);
    } catch (const UnusableLogits&) {
      drawn[i].error = explain_unusable_logits(decoder_, kv_.shape().type);
    }
  };
  const auto on_host = [&](size_t i, const float* row) {
    one(i, [&](Request& request) {
      drawn[i].token =
          request.sampler.sample({row, static_cast<size_t>(logits.cols)},
                                 static_cast<int64_t>(request.tokens.size()), &drawn[i].logprobs);
    });
  };
  const auto accept = [&](size_t i, int32_t id) {
    one(i, [&](Request& request) { drawn[i].token = request.sampler.accept(id); });
  };
  std::vector<int32_t> ids(count);
  if (step.draw) {
    device.ops().take_drawn(*step.draw, ids);
    for (size_t i = 0; i < count; ++i) accept(i, ids[i]);
    return drawn;
  }
  if (device.host_visible()) {
    for (size_t i = 0; i < count; ++i) on_host(i, logits.f32(static_cast<int64_t>(i)));
    return drawn;
  }
  const bool on_device = device.ops().can_sample();
  // Logprobs need the row itself, before sampling changes it.
  std::vector<float> row;
  std::vector<SampleRow> rows(count);
  std::vector<bool> by_device(count);
  for (size_t i = 0; i < count; ++i) {
    Request& request = *requests_.at(step.drawing[i]);
    by_device[i] = on_device && !request.sampler.wants_logprobs();
    if (by_device[i]) {
      rows[i] = request.sampler.sample_row(static_cast<int64_t>(request.tokens.size()));
    } else {
      row.resize(static_cast<size_t>(logits.cols));
      device.copy_to_host(reinterpret_cast<std::byte*>(row.data()),
                          logits.row_range(static_cast<int64_t>(i), 1).data,
                          row.size() * sizeof(float));
      on_host(i, row.data());
    }
  }
  if (!on_device) return drawn;
  device.ops().sample(logits, rows, ids);
  for (size_t i = 0; i < count; ++i) {
    if (by_device[i]) accept(i, ids[i]);
  }
  return drawn;
}

GenerationEvent Engine::accept_token(Request& request, DrawnToken& drawn, bool is_counted) {
  GenerationEvent event;
  event.id = request.id;
  if (!drawn.error.empty()) {
    event.error = std::move(drawn.error);
    finish(request, FinishReason::kError, event);
    return event;
  }
  const TokenId token = drawn.token;
  ++stats_.generated_tokens;
  request.tokens.push_back(token);
  event.token = token;
  if (request.params.sampling.logprobs >= 0) event.logprobs = std::move(drawn.logprobs);

  const bool end = tokenizer_ != nullptr && !request.params.ignore_end &&
                   tokenizer_->is_end_of_generation(token);
  if (request.detokenizer && !end)
    event.text = request.stops.push(request.detokenizer->push(token));
  if (end || request.stops.stopped()) {
    finish(request, FinishReason::kStop, event);
  } else if (ends_by_length(request, 0)) {
    finish(request, FinishReason::kLength, event);
  } else if (!is_counted) {
    scheduler_.append(request.id);
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
  const RequestId id = request.id;
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
