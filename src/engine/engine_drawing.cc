// SPDX-License-Identifier: Apache-2.0
// Part of Engine: samples tokens from rows of logits, and finds which drafts were right.
//
// A draft is a single token, not a distribution, so the rejection rule of speculative sampling
// (Leviathan et al. 2023, section 2.3) comes to this: sample the token in its place as if there
// were no drafts, with the request's own sampler and that position's own random number. If it
// equals the draft, the next row is right, too; if not, it is the answer's next token, and is
// distributed as what is left of the probabilities without the draft. So an answer has the same
// tokens as without drafts, as long as the logits have the same bits.
#include <algorithm>
#include <cmath>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "engine/engine.h"
#include "engine/engine_request.h"
#include "engine/unusable_logits.h"
#include "plan/footprint.h"

namespace spillway {

bool Engine::can_draft() {
  try {
    decoder_.expect_rows(rows_with_drafts(max_sequences_, drafts_.most_tokens()));
    return true;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kOutOfMemory) throw;
    log_warning("no drafts, since there is no memory for their logits: {}", error.what());
    return false;
  }
}

bool Engine::is_scored(const Request& request, const ScheduledChunk& chunk) {
  return request.params.prompt_logprobs >= 0 &&
         chunk.start < static_cast<int32_t>(request.params.prompt.size());
}

// A prompt whose tokens get log-probabilities needs a row for each of them.
int32_t Engine::logit_rows(const Request& request, const ScheduledChunk& chunk) {
  return is_scored(request, chunk) ? chunk.tokens : chunk.last ? 1 + chunk.drafted : 0;
}

std::vector<Engine::DrawnToken> Engine::draw(const Activations& logits, const StepPlan& plan) {
  std::vector<DrawnToken> drawn;
  std::vector<RowsToDraw> drawing;  // requests whose consecutive rows end at `row`
  int64_t row = 0;
  const auto draw_these = [&] {
    if (drawing.empty()) return;
    int64_t count = 0;
    for (const RowsToDraw& of : drawing) count += 1 + of.drafted;
    const Activations rows = logits.row_range(row - count, count);
    if (decoder_.device().ops().can_sample()) {
      sample_on_device(rows, drawing, drawn);
    } else {
      sample_on_host(rows, drawing, drawn);
    }
    drawing.clear();
  };
  for (const ScheduledChunk& chunk : plan.chunks) {
    Request& request = *requests_.at(chunk.id);
    const int32_t rows = logit_rows(request, chunk);
    const bool draws = chunk.last && request.params.max_tokens > 0;
    DrawnToken next{
        .request = &request, .drafted = chunk.drafted, .draws = draws, .is_last = chunk.last};
    const bool scored = is_scored(request, chunk) && (rows > 1 || !draws);
    if (scored) {
      draw_these();
      auto scores = try_score_prompt(request, chunk, logits.row_range(row, rows));
      if (!scores) next.error = explain_unusable_logits(decoder_, kv_.shape().type);
      if (scores) next.prompt_logprobs = std::move(*scores);
    }
    row += rows;
    if (draws) drawing.push_back({&request, chunk.drafted, drawn.size()});
    // A chunk that is computed again may have no token and no new log-probabilities.
    const bool tells = chunk.last || !next.prompt_logprobs.empty();
    if (tells) drawn.push_back(std::move(next));
    if (draws && scored) draw_these();
  }
  draw_these();
  for (DrawnToken& token : drawn) {
    const bool is_unusable = (token.draws && token.sampled.id < 0) ||
                             std::ranges::any_of(token.prompt_logprobs, [](const Logprobs& of) {
                               return std::isnan(of.chosen);
                             });
    if (is_unusable) token.error = explain_unusable_logits(decoder_, kv_.shape().type);
  }
  return drawn;
}

std::optional<std::vector<Logprobs>> Engine::try_score_prompt(const Request& request,
                                                              const ScheduledChunk& chunk,
                                                              const Activations& logits) {
  Device& device = decoder_.device();
  const auto prompt = static_cast<int64_t>(request.params.prompt.size());
  std::vector<float> copy(device.host_visible() ? 0 : static_cast<size_t>(logits.cols));
  std::vector<Logprobs> found;
  for (int64_t i = 0; i < logits.rows; ++i) {
    const int64_t position = chunk.start + i + 1;  // of the token that the row predicts
    // A preempted sequence computes rows again whose log-probabilities were reported.
    if (position >= prompt || position < request.scored) continue;
    const Activations row = logits.row_range(i, 1);
    if (!copy.empty())
      device.copy_to_host(reinterpret_cast<std::byte*>(copy.data()), row.data,
                          copy.size() * sizeof(float));
    const float* const values = copy.empty() ? row.f32() : copy.data();
    if (!are_usable({values, static_cast<size_t>(logits.cols)})) return std::nullopt;
    found.push_back(compute_logprobs({values, static_cast<size_t>(logits.cols)},
                                     request.params.prompt[static_cast<size_t>(position)],
                                     request.params.prompt_logprobs));
  }
  return found;
}

void Engine::propose_drafts(std::span<const RequestId> drawn) {
  if (!drafts_.is_on()) return;
  std::vector<Request*> generating;
  for (const RequestId id : drawn) {
    const auto found = requests_.find(id);
    if (found != requests_.end()) generating.push_back(found->second.get());
  }
  for (Request* const request : generating) {
    const int64_t left = std::min(request->params.max_tokens - request->generated(),
                                  max_sequence_tokens() - request->next_position());
    const auto most = static_cast<int>(std::min<int64_t>(kMostDrafts, left - 1));
    RequestDrafts& drafts = request->drafts;
    drafts.next = drafts.source->propose(request->tokens, most);
    if (drafts.next.empty()) continue;
    const int chosen = drafts.control.choose(draft_costs_, static_cast<int>(generating.size()),
                                             static_cast<int>(drafts.next.size()));
    drafts.next.resize(static_cast<size_t>(chosen));
    scheduler_.propose(request->id, chosen);
  }
}

void Engine::sample_on_device(const Activations& logits, std::span<const RowsToDraw> requests,
                              std::vector<DrawnToken>& drawn) {
  std::vector<Sampler> forks;  // for rows after drafts, each as if the drafts before it were right
  size_t drafted = 0;
  for (const RowsToDraw& of : requests) drafted += static_cast<size_t>(of.drafted);
  forks.reserve(drafted);
  std::vector<SampleRow> rows;
  for (const RowsToDraw& of : requests) {
    int64_t position = of.request->next_position();
    Sampler* sampler = &of.request->sampler;
    rows.push_back(sampler->sample_row(position));
    for (int32_t i = 0; i < of.drafted; ++i) {
      sampler = &forks.emplace_back(sampler->fork());
      sampler->accept(of.request->drafts.next[static_cast<size_t>(i)]);
      rows.push_back(sampler->sample_row(++position));
    }
  }
  std::vector<SampledToken> tokens(rows.size());
  decoder_.device().ops().sample(logits, rows, tokens);
  auto token = tokens.begin();
  for (const RowsToDraw& of : requests) {
    RequestDrafts& drafts = of.request->drafts;
    DrawnToken& result = drawn[of.at];
    const auto end = token + 1 + of.drafted;
    for (int32_t i = 0; i < of.drafted && token->id >= 0; ++i, ++token) {
      if (!drafts.source->accepts(drafts.next[static_cast<size_t>(i)], token->id)) break;
      result.accepted.push_back(std::move(*token));
    }
    result.sampled = std::move(*token);
    token = end;
  }
}

void Engine::sample_on_host(const Activations& logits, std::span<const RowsToDraw> requests,
                            std::vector<DrawnToken>& drawn) {
  Device& device = decoder_.device();
  std::vector<float> copy(device.host_visible() ? 0 : static_cast<size_t>(logits.cols));
  int64_t first = 0;
  for (const RowsToDraw& of : requests) {
    RequestDrafts& drafts = of.request->drafts;
    DrawnToken& result = drawn[of.at];
    std::optional<Sampler> fork;
    for (int32_t i = 0; i <= of.drafted; ++i) {
      const Activations row = logits.row_range(first + i, 1);
      if (!copy.empty())
        device.copy_to_host(reinterpret_cast<std::byte*>(copy.data()), row.data,
                            copy.size() * sizeof(float));
      const float* const values = copy.empty() ? row.f32() : copy.data();
      Sampler& sampler = fork ? *fork : of.request->sampler;
      SampledToken token = sampler.sample({values, static_cast<size_t>(logits.cols)},
                                          of.request->next_position() + i);
      const bool is_right = i < of.drafted && token.id >= 0 &&
                            drafts.source->accepts(drafts.next[static_cast<size_t>(i)], token.id);
      if (!is_right) {
        result.sampled = std::move(token);
        break;
      }
      if (!fork) fork.emplace(of.request->sampler.fork());
      fork->accept(token.id);
      result.accepted.push_back(std::move(token));
    }
    first += 1 + of.drafted;
  }
}

void Engine::accept_tokens(DrawnToken& drawn, std::vector<GenerationEvent>& events) {
  Request& request = *drawn.request;
  const RequestId id = request.id;
  const auto accepted = static_cast<int32_t>(drawn.accepted.size());
  stats_.draft_proposed += drawn.drafted;
  request.drafts.proposed += drawn.drafted;
  request.drafts.control.note(drawn.drafted, accepted);
  for (SampledToken& token : drawn.accepted) {
    ++stats_.draft_accepted;
    ++request.drafts.accepted;
    DrawnToken right{.request = &request, .sampled = std::move(token)};
    events.push_back(accept_token(right));
    if (events.back().finish) return;
  }
  events.push_back(accept_token(drawn));
  if (events.back().finish || !drawn.draws) return;
  scheduler_.cut_back(id, drawn.drafted - accepted);
  scheduler_.append(id);
}

}  // namespace spillway
