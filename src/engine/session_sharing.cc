// SPDX-License-Identifier: Apache-2.0
// Of a session: KV memory that more sequences share than would fit, were all as long as they may
// be. Who finds no room waits, and who runs out of it is preempted.
#include <algorithm>
#include <numeric>

#include "engine/result_settings.h"
#include "engine/session.h"
#include "plan/search.h"

namespace spillway {
namespace {

// Of a sequence in the end, on average, as far as anybody knows.
int64_t mean_tokens(const ExpectedRun& run, int64_t most) {
  const auto answers = static_cast<int64_t>(run.answers.size());
  const int64_t sum = std::accumulate(
      run.answers.begin(), run.answers.end(), int64_t{0},
      [&](int64_t before, int64_t answer) { return before + std::min(run.prompt + answer, most); });
  return (sum + answers - 1) / answers;
}

}  // namespace

std::optional<Session::Placed> Session::try_shared(const Placed& whole, const RunSize& wanted,
                                                   const ExpectedRun& run) const {
  if (run.at_once < 2 || run.answers.empty() || whole.by_hand || device->host_visible() ||
      !may_preempt(settings.attention_topk, settings.deterministic))
    return std::nullopt;
  // Nothing is gained where all of it is on the device.
  if (whole.plan.all_on_device() && whole.size.sequences >= wanted.sequences) return std::nullopt;
  Placed shared{.plan = {}, .size = wanted};
  options_.placement.given().apply_to(shared.plan);
  if (shared.plan.schedule != ScheduleKind::kContinuous || !shared.plan.all_on_device())
    return std::nullopt;
  const DeviceTraits traits = traits_within(budgets_);
  const auto has_room = [&](int64_t sequences) {
    RunSize size = wanted;
    size.sequences = sequences;
    return fits(footprint(loaded->model, shared.plan, size, traits), traits, careful(budgets_));
  };
  const int64_t tokens = mean_tokens(run, wanted.tokens) * run.at_once;
  int64_t least = std::max<int64_t>(1, (tokens + wanted.tokens - 1) / wanted.tokens);
  if (least >= wanted.sequences || !has_room(least)) return std::nullopt;
  // As many as there is room for: the less is lost where answers are longer than predicted.
  for (int64_t most = wanted.sequences; least < most;) {
    const int64_t middle = most - (most - least) / 2;
    if (has_room(middle)) {
      least = middle;
    } else {
      most = middle - 1;
    }
  }
  shared.size.sequences = least;
  settle(shared, loaded->model, run, budgets_);
  return shared;
}

int64_t Session::sequences_at_once(Room room) const {
  const int64_t planned = plan.sequences.value_or(1);
  const bool expands = options_.placement.kv_expansion != "off" && !device->host_visible();
  // A plan may have been made for more than are asked for now.
  if (room == Room::kWaitedFor && size_.at_once > 0)
    return std::min(size_.at_work(), std::max(planned, run_.at_once));
  if (!expands && room == Room::kForWhole) return planned;
  if (needs_of(runner_size(size_.tokens, planned)).layout.blocks_away() > 0) return planned;
  // Rows of logits of all of them must fit beside the KV, whose size is decided.
  int64_t most = std::max({planned, run_.sequences, run_.at_once});
  const DeviceTraits traits = traits_within(budgets_);
  const auto has_room = [&] {
    RunSize size = runner_size(size_.tokens, planned);
    size.at_once = most;
    return fits(needs_of(size), traits, budgets_);
  };
  while (most > planned && !has_room()) most = planned + (most - planned) / 2;
  return most;
}

}  // namespace spillway
