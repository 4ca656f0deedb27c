// SPDX-License-Identifier: Apache-2.0
#include "cli/bench_workload.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "cli/interrupt.h"
#include "cli/terminal.h"
#include "engine/sampler.h"
#include "engine/unusable_logits.h"
#include "kv/block_allocator.h"
#include "schedule/scheduler.h"

namespace spillway {

Workload::Workload(const WorkloadSize& size, Session& session)
    : size_(size),
      runner_(session.make_runner(int64_t{size.prompt_len} + size.gen_len, size.batch)),
      group_(static_cast<size_t>(sequences_at_once(session.plan, size.batch))) {
  const auto blocks =
      static_cast<size_t>(blocks_for_tokens(int64_t{size.prompt_len} + size.gen_len));
  for (int b = 0; b < size.batch; ++b) {
    tables_.emplace_back(blocks);
    std::iota(tables_.back().begin(), tables_.back().end(),
              static_cast<int32_t>(static_cast<size_t>(b) * blocks));
    prompts_.emplace_back(static_cast<size_t>(size.prompt_len));
    for (size_t i = 0; i < prompts_.back().size(); ++i) {
      const double uniform = counter_uniform(static_cast<uint64_t>(b), i);
      prompts_.back()[i] = static_cast<TokenId>(
          uniform * static_cast<double>(session.loaded->model.spec.vocab_size));
    }
  }
}

std::optional<WorkloadTiming> Workload::run() {
  WorkloadTiming timing;
  next_.assign(prompts_.size(), 0);
  runner_.decoder.take_stats();
  const Stopwatch prefill_watch;
  if (!prefill()) return std::nullopt;
  timing.prefill_s = prefill_watch.seconds();
  timing.prefill = runner_.decoder.take_stats();
  const int all = size_.gen_len - 1;
  timing.steps = size_.steps > 0 ? std::min(size_.steps, all) : all;
  const Stopwatch decode_watch;
  if (!decode(timing.steps)) return std::nullopt;
  timing.decode_s = decode_watch.seconds();
  timing.decode = runner_.decoder.take_stats();
  if (timing.steps > 0) timing.decode_s *= static_cast<double>(all) / timing.steps;
  return timing;
}

std::vector<TokenId> Workload::step(const std::vector<StepSequence>& sequences) {
  return greedy(runner_.decoder.step(runner_.kv, sequences));
}

// Fills every step with as many prompt tokens as it takes, of one sequence after the other.
bool Workload::prefill() {
  size_t b = 0;
  int start = 0;
  while (b < prompts_.size()) {
    if (interrupted()) return false;
    std::vector<StepSequence> sequences;
    std::vector<size_t> finished;
    for (int room = runner_.decoder.max_tokens(); room > 0 && b < prompts_.size();) {
      const int count = std::min(room, size_.prompt_len - start);
      const bool last = start + count == size_.prompt_len;
      const std::span<const TokenId> prompt(prompts_[b]);
      sequences.push_back({prompt.subspan(static_cast<size_t>(start), static_cast<size_t>(count)),
                           start, tables_[b], last ? 1 : 0});
      if (last) finished.push_back(b++);
      start = last ? 0 : start + count;
      room -= count;
    }
    const std::vector<TokenId> drawn = step(sequences);
    for (size_t row = 0; row < finished.size(); ++row) next_[finished[row]] = drawn[row];
  }
  return true;
}

std::vector<StepSequence> Workload::newest(size_t begin, size_t end, int step) const {
  std::vector<StepSequence> sequences;
  for (size_t b = begin; b < end; ++b)
    sequences.push_back({{&next_[b], 1}, size_.prompt_len + step, tables_[b], 1});
  return sequences;
}

bool Workload::decode(int steps) {
  if (group_ >= next_.size() && runner_.decoder.runs_ahead(runner_.kv)) return decode_ahead(steps);
  for (int i = 0; i < steps; ++i) {
    for (size_t begin = 0; begin < next_.size(); begin += group_) {
      if (interrupted()) return false;
      const size_t end = std::min(begin + group_, next_.size());
      const std::vector<TokenId> drawn = step(newest(begin, end, i));
      std::copy(drawn.begin(), drawn.end(), next_.begin() + static_cast<ptrdiff_t>(begin));
    }
  }
  return true;
}

bool Workload::decode_ahead(int steps) {
  Ops& ops = runner_.decoder.device().ops();
  const std::vector<SampleRow> greedily(next_.size());
  uint64_t before = 0;
  for (int i = 0; i < steps; ++i) {
    if (interrupted()) return false;
    const Activations logits = runner_.decoder.step(runner_.kv, newest(0, next_.size(), i));
    const uint64_t draw = ops.draw(logits, greedily);
    if (i == 0) {
      for (size_t b = 0; b < next_.size(); ++b) next_[b] = drawn_id(static_cast<int32_t>(b));
    } else {
      take_drawn(before);
    }
    before = draw;
  }
  if (steps > 0) next_ = take_drawn(before);
  return true;
}

std::vector<TokenId> Workload::take_drawn(uint64_t draw) {
  std::vector<TokenId> ids(next_.size());
  runner_.decoder.device().ops().take_drawn(draw, ids);
  check_drawn(ids);
  return ids;
}

void Workload::check_drawn(std::span<const TokenId> ids) {
  for (const TokenId id : ids) {
    SPW_CHECK(id >= 0, kInternal, "{}",
              explain_unusable_logits(runner_.decoder, runner_.kv.shape().type));
  }
}

std::vector<TokenId> Workload::greedy(const Activations& logits) {
  const auto rows = static_cast<size_t>(logits.rows);
  std::vector<TokenId> ids(rows);
  Device& device = runner_.decoder.device();
  if (device.ops().can_sample()) {
    device.ops().sample(logits, std::vector<SampleRow>(rows), ids);
  } else {
    for (size_t row = 0; row < rows; ++row) {
      const std::span<const float> values(logits.f32(static_cast<int64_t>(row)),
                                          static_cast<size_t>(logits.cols));
      ids[row] = are_usable(values)
                     ? static_cast<TokenId>(std::max_element(values.begin(), values.end()) -
                                            values.begin())
                     : -1;
    }
  }
  check_drawn(ids);
  return ids;
}

}  // namespace spillway
