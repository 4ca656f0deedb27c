// SPDX-License-Identifier: Apache-2.0
#include "engine/engine.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "engine/stop_matcher.h"
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
                  .admit_in_blocks = options.admit_in_blocks}),
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
  for (const RequestId id : std::exchange(cancelled_, {}))
    end_without_token(id, FinishReason::kCancelled, sink);
  const StepPlan plan = scheduler_.next_step();
  stats_.preemptions = scheduler_.preemptions();
  for (const RequestId id : plan.exhausted) end_without_token(id, FinishReason::kLength, sink);
  if (plan.chunks.empty()) return !requests_.empty();

  std::vector<StepSequence> sequences;
  for (const ScheduledChunk& chunk : plan.chunks) {
    const Request& request = *requests_.at(chunk.id);
    const std::span<const TokenId> tokens(request.tokens);
    sequences.push_back(
        {tokens.subspan(static_cast<size_t>(chunk.start), static_cast<size_t>(chunk.tokens)),
         chunk.start, *chunk.block_table, chunk.last ? 1 : 0});
    if (chunk.start < static_cast<int32_t>(request.params.prompt.size()))
      stats_.prompt_tokens += chunk.tokens;
  }
  Activations logits;
  try {
    logits = decoder_.step(kv_, sequences);
    lost_ = 0;
  } catch (const Error& error) {
    // KV or activations that came back from the disk other than they went there: nothing wrong was
    // computed with them and kept, and all of it can be computed again.
    if (error.code() != ErrorCode::kCorrupt || ++lost_ > kMostLost) throw;
    log_warning("{}; the sequences are computed again", error.what());
    scheduler_.preempt_all();
    return true;
  }
  ++stats_.steps;
  stats_.sequence_steps += scheduler_.running();

  std::vector<Request*> drawing;
  for (const ScheduledChunk& chunk : plan.chunks) {
    if (chunk.last) drawing.push_back(requests_.at(chunk.id).get());
  }
  std::vector<DrawnToken> drawn = draw(logits, drawing);
  for (size_t i = 0; i < drawing.size(); ++i) accept_token(*drawing[i], drawn[i], sink);
  return !requests_.empty();
}

std::vector<Engine::DrawnToken> Engine::draw(const Activations& logits,
                                             std::span<Request* const> requests) {
  std::vector<DrawnToken> drawn(requests.size());
  Device& device = decoder_.device();
  const auto one = [&](size_t i, auto&& f) {
    try {
      f();
    } catch (const Error& error) {
      drawn[i].error = error.what();
    }
  };
  const auto on_host = [&](size_t i, const float* row) {
    Request& request = *requests[i];
    one(i, [&] {
      drawn[i].token =
          request.sampler.sample({row, static_cast<size_t>(logits.cols)},
                                 static_cast<int64_t>(request.tokens.size()), &drawn[i].logprobs);
    });
  };
  if (device.host_visible()) {
    for (size_t i = 0; i < requests.size(); ++i) on_host(i, logits.f32(static_cast<int64_t>(i)));
    return drawn;
  }
  if (requests.empty()) return drawn;
  const bool on_device = device.ops().can_sample();
  // Logprobs need the row itself, before sampling changes it.
  std::vector<float> row;
  std::vector<SampleRow> rows(requests.size());
  for (size_t i = 0; i < requests.size(); ++i) {
    Request& request = *requests[i];
    if (on_device && !request.sampler.wants_logprobs()) {
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
  std::vector<int32_t> ids(requests.size());
  device.ops().sample(logits, rows, ids);
  for (size_t i = 0; i < requests.size(); ++i) {
    if (requests[i]->sampler.wants_logprobs()) continue;
    one(i, [&] { drawn[i].token = requests[i]->sampler.accept(ids[i]); });
  }
  return drawn;
}

void Engine::accept_token(Request& request, DrawnToken& drawn, const Sink& sink) {
  GenerationEvent event;
  event.id = request.id;
  if (!drawn.error.empty()) {
    event.error = std::move(drawn.error);
    finish(request, FinishReason::kError, event, sink);
    return;
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
    finish(request, FinishReason::kStop, event, sink);
  } else if (request.generated() >= request.params.max_tokens ||
             static_cast<int64_t>(request.tokens.size()) >= max_sequence_tokens()) {
    finish(request, FinishReason::kLength, event, sink);
  } else {
    scheduler_.append(request.id);
    sink(event);
  }
}

// Emits the last event and forgets the request; `request` is gone afterwards.
void Engine::finish(Request& request, FinishReason reason, GenerationEvent& event,
                    const Sink& sink) {
  if (request.detokenizer) {
    event.text += request.stops.push(request.detokenizer->flush());
    event.text += request.stops.flush();
  }
  event.finish = reason;
  const RequestId id = request.id;
  scheduler_.remove(id);
  requests_.erase(id);
  sink(event);
}

void Engine::end_without_token(RequestId id, FinishReason reason, const Sink& sink) {
  const auto it = requests_.find(id);
  if (it == requests_.end()) return;
  GenerationEvent event;
  event.id = id;
  finish(*it->second, reason, event, sink);
}

}  // namespace spillway
