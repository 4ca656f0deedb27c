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

// The blocks that a sequence has in the end, in a group of layers that may keep only its
// newest tokens.
int64_t predicted_blocks(const SequenceView& sequence) {
  return std::min(blocks_for_tokens(predicted_end(sequence)), sequence.most_blocks);
}

int64_t answer_of(const SequenceView& sequence) {
  return predicted_end(sequence) - sequence.prompt;
}

// Requires room for the final lengths of all sequences together.
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
  int64_t last_ = 0;  // the blocks of the sequence that was added last
};

// Assumes that all sequences grow by a token a step until they end. Then their sum is largest just
// before one of them ends, so it is computed at those times only.
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
    // A cheap test refuses most waiting requests here, because many are tried in each step.
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

  // The tokens that the sequences hold together at the peak.
  int64_t peak_tokens() const { return peak_.tokens; }

 private:
  struct Item {
    int64_t to_come = 0;  // tokens until it ends
    int64_t held = 0;     // tokens now
    // Whether it grows by `to_come` tokens. Not if all blocks that it will need were taken
    // together, nor if it reaches the most that it can hold before it ends, which then counts
    // from now on.
    bool grows = true;
  };
  struct Peak {
    int64_t tokens = 0;
    int64_t after = 0;  // steps until the peak
  };
  // The state before the last sequence was added.
  struct Before {
    std::ptrdiff_t place = 0;  // index at which it was added
    double variance = 0;
    Peak peak = {};
  };
  Peak find_peak() const {
    int64_t held = 0, count = 0;
    Peak peak;
    for (const Item& item : going_) {  // sorted: those that stay longest come first
      held += item.held;
      count += item.grows ? 1 : 0;
      const int64_t tokens = held + count * item.to_come;
      if (tokens > peak.tokens) peak = {.tokens = tokens, .after = item.to_come};
    }
    return peak;
  }
  // Counts the last block of a sequence as half full, as it is on average.
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
  double variance_ = 0;  // variance of all tokens to come
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

size_t PreemptExceeded::choose(std::span<const SequenceView> running) const {
  size_t chosen = running.size() - 1;
  const auto weight = [&](size_t i) {
    return std::tuple(running[i].exceeded > 0, predicted_end(running[i]) - running[i].known, i);
  };
  for (size_t i = 1; i < running.size(); ++i)
    if (weight(i) > weight(chosen)) chosen = i;
  return chosen;
}

}  // namespace spillway
