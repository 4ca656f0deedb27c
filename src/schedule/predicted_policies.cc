// SPDX-License-Identifier: Apache-2.0
#include "schedule/predicted_policies.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <tuple>
#include <vector>

#include "kv/block_allocator.h"

namespace spillway {

int64_t predicted_end(const SequenceView& sequence) {
  int64_t end = sequence.reserved;
  if (end <= 0) {
    end = sequence.prompt + static_cast<int64_t>(std::ceil(sequence.mean_answer));
    if (sequence.expected > 0) end = std::min(end, sequence.expected);
  }
  return std::max<int64_t>(end, sequence.known + 1);
}

namespace {

// In the end, of a sequence in a group of layers that may keep only its newest tokens.
int64_t predicted_blocks(const SequenceView& sequence) {
  return std::min(blocks_for_tokens(predicted_end(sequence)), sequence.most_blocks);
}

int64_t answer_of(const SequenceView& sequence) {
  return predicted_end(sequence) - sequence.prompt;
}

// All they have in the end, at once.
class SumForecast : public RoomForecast {
 public:
  SumForecast(std::span<const SequenceView> running, int64_t blocks) : left_(blocks) {
    for (const SequenceView& sequence : running)
      left_ -= std::max(sequence.blocks, predicted_blocks(sequence));
  }
  bool try_add(const SequenceView& next) override {
    const int64_t blocks = predicted_blocks(next);
    if (blocks > left_) return false;
    left_ -= last_ = blocks;
    return true;
  }
  void take_back() override { left_ += last_; }

 private:
  int64_t left_;
  int64_t last_ = 0;  // the blocks of the last one that was added
};

// All grow by a token a step until they end. What they hold is largest just before one of them
// ends; it is looked at then.
class PeakForecast : public RoomForecast {
 public:
  PeakForecast(std::span<const SequenceView> running, int64_t blocks, double spare)
      : room_(blocks * kKvBlockTokens), spare_(spare) {
    for (const SequenceView& sequence : running) {
      going_.push_back(item_of(sequence));
      variance_ += variance_of(sequence);
    }
    std::ranges::sort(going_, std::greater<>(), &Item::to_come);
    peak_ = find_peak();
  }

  bool try_add(const SequenceView& next) override {
    const Item item = item_of(next);
    const double variance = variance_ + variance_of(next);
    const int64_t room = room_ - std::llround(spare_ * std::sqrt(variance));
    // Most that wait are told so here: many are asked in each step.
    const int64_t grown = item.grows ? peak_.after : 0;
    if (item.to_come >= peak_.after && peak_.tokens + item.held + grown > room) return false;
    const auto at =
        std::ranges::lower_bound(going_, item.to_come, std::greater<>(), &Item::to_come);
    const auto place = going_.insert(at, item);
    const Peak peak = find_peak();
    if (peak.tokens > room) {
      going_.erase(place);
      return false;
    }
    before_ = {.place = place - going_.begin(), .variance = variance_, .peak = peak_};
    variance_ = variance;
    peak_ = peak;
    return true;
  }
  void take_back() override {
    going_.erase(going_.begin() + before_.place);
    variance_ = before_.variance;
    peak_ = before_.peak;
  }

  // When they hold most.
  int64_t peak_tokens() const { return peak_.tokens; }

 private:
  struct Item {
    int64_t to_come = 0;  // tokens, until it ends
    int64_t held = 0;     // tokens, now
    // By these; not where all that it will need was taken at once, or where it comes to the most
    // that it holds before it ends, which then counts from the beginning.
    bool grows = true;
  };
  struct Peak {
    int64_t tokens = 0;
    int64_t after = 0;  // so many steps
  };
  // Before the last one was added.
  struct Before {
    std::ptrdiff_t place = 0;  // where it went
    double variance = 0;
    Peak peak = {};
  };
  Peak find_peak() const {
    int64_t held = 0, count = 0;
    Peak peak;
    for (const Item& item : going_) {  // those that stay longest first
      held += item.held;
      count += item.grows ? 1 : 0;
      const int64_t tokens = held + count * item.to_come;
      if (tokens > peak.tokens) peak = {.tokens = tokens, .after = item.to_come};
    }
    return peak;
  }
  // The last block of a sequence is half full on average.
  static Item item_of(const SequenceView& sequence) {
    const int64_t end = predicted_end(sequence), to_come = end - sequence.known;
    if (blocks_for_tokens(end) > sequence.most_blocks)
      return {.to_come = to_come,
              .held = std::max(sequence.blocks, sequence.most_blocks) * kKvBlockTokens,
              .grows = false};
    if (sequence.blocks > blocks_for_tokens(sequence.known + 1) &&
        sequence.blocks >= blocks_for_tokens(end))
      return {.to_come = to_come, .held = sequence.blocks * kKvBlockTokens, .grows = false};
    return {.to_come = to_come,
            .held = std::max<int64_t>(sequence.known, (sequence.blocks - 1) * kKvBlockTokens) +
                    kKvBlockTokens / 2};
  }
  static double variance_of(const SequenceView& sequence) {
    const int64_t end = predicted_end(sequence);
    int64_t unsure = end - sequence.known;
    if (sequence.expected > 0) unsure = std::clamp<int64_t>(sequence.expected - end, 0, unsure);
    unsure = std::clamp<int64_t>(sequence.most_blocks * kKvBlockTokens - end, 0, unsure);
    return static_cast<double>(unsure) * static_cast<double>(unsure);
  }

  int64_t room_;  // tokens
  double spare_;
  double variance_ = 0;  // of what all have to come, in tokens
  std::vector<Item> going_;
  Peak peak_;
  Before before_;
};

}  // namespace

QueueOrder::Rank ShortestPredictedFirst::rank(const SequenceView& arriving) {
  const auto answer = static_cast<double>(answer_of(arriving));
  mean_ = arriving.mean_answer > 0 ? arriving.mean_answer : mean_ > 0 ? mean_ : answer;
  constexpr int kMostDoublings = 16;
  const int doublings = std::clamp(arriving.priority, -kMostDoublings, kMostDoublings);
  return {.value = clock_ + std::ldexp(answer, doublings)};
}

void ShortestPredictedFirst::began(double) { clock_ += mean_ / patience_; }

std::unique_ptr<RoomForecast> PredictedAdmission::forecast(std::span<const SequenceView> running,
                                                           int64_t blocks) const {
  if (options_.packing == Packing::kSum) return std::make_unique<SumForecast>(running, blocks);
  return std::make_unique<PeakForecast>(running, blocks, options_.spare);
}

int64_t peak_blocks(std::span<const SequenceView> sequences) {
  return blocks_for_tokens(PeakForecast(sequences, 0, 0).peak_tokens());
}

size_t OutgrownGivesWay::choose(std::span<const SequenceView> running) const {
  size_t chosen = running.size() - 1;
  const auto weight = [&](size_t i) {
    return std::tuple(running[i].outgrown > 0, predicted_end(running[i]) - running[i].known, i);
  };
  for (size_t i = 1; i < running.size(); ++i)
    if (weight(i) > weight(chosen)) chosen = i;
  return chosen;
}

}  // namespace spillway
