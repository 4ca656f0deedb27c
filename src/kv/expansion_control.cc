// SPDX-License-Identifier: Apache-2.0
#include "kv/expansion_control.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace spillway {
namespace {

constexpr int kWindowSteps = 8;
constexpr int kUnmeasuredSteps = 2;
// Steps are judged in intervals of kWindowSteps. Shares of an interval in which ops wait: up to
// kNoWait counts as no wait. After kPatience intervals in a row with more, fewer layers are
// swapped; with more than kLongWait, after kShortPatience.
constexpr double kNoWait = 0.025, kLongWait = 0.1;
constexpr int kPatience = 5, kShortPatience = 3;
constexpr int kQuietWindows = 16;
constexpr int kFirstHold = 8, kLongestHold = 256;
// A level that failed is tried again early if the link can bring this many times as much.
constexpr double kMuchMore = 1.25;
constexpr int kJudgingWindows = 3;
constexpr int kLongestLook = 8;  // intervals, for the new room to come into use
constexpr int kTryWindows = 24;  // for so many intervals a growth counts as a try, which may fail
// Throughput must grow by at least this share of what the added room would bring at best; less
// counts as nothing.
constexpr double kWorthwhile = 0.2;
constexpr double kNoise = 0.02;
// A growth of room by this share has an effect that noise cannot feign: its throughput is the new
// reference.
constexpr double kProof = 0.2;
// One growth multiplies the number of swapped layers by at most this.
constexpr int kMostGrowth = 4;
// Failed tries may cost at most this share of the time.
constexpr double kCostOfTries = 0.005;
// The share of a layer's time in which its KV is in use, from its projections to its attention. It
// is estimated from the bytes that these read, not measured; if it is wrong, the measured waits
// correct it.
constexpr double kInUse = 0.4;
// A copy may be estimated to take this many times the time that it has: the excess is as good as no
// wait.
constexpr double kFull = 1.02;
// Growth is tried even if copies are estimated to take this many times the time that they have with
// all room in use: it is not in use all the time, and when it is, waits show it.
constexpr double kWorthATry = 1.06;
// If this share of the loads that come ahead of a step is complete before the previous step ends,
// one more level is tried whatever the estimate says. Swapped layers share one or two spare
// buffers. With two, two loads come ahead, and the first of them is early as long as the link is
// not full: a share of 1/2. It is enough if that is so in four steps of five: 0.4. With one buffer
// the only load is early if the link is in use for less than half of the time.
constexpr double kTimeToSpare = 0.4;
// After a growth beyond the estimate, by kTimeToSpare, less waiting is accepted, because it was not
// meant to fill the link completely.
constexpr double kLittleWait = 0.01;

}  // namespace

ExpansionControl::ExpansionControl(const LayerSwapSizes& sizes, int64_t layer_block_bytes)
    : sizes_(sizes), block_bytes_(static_cast<double>(layer_block_bytes)), levels_{0} {
  // With one shared buffer the least gap between two swapped layers limits the copies: of the
  // numbers with the same gap, only the largest is a level.
  const auto least_gap = [&](int swapped) { return sizes.layers / swapped; };
  for (int swapped = 1; swapped <= sizes.most; ++swapped) {
    const bool is_one = sizes.spare_with(swapped) == 1;
    if (is_one && swapped < sizes.most && sizes.spare_with(swapped + 1) == 1 &&
        least_gap(swapped + 1) == least_gap(swapped))
      continue;
    if (sizes.gains_with(swapped) && sizes.blocks_with(swapped) > sizes.blocks_with(levels_.back()))
      levels_.push_back(swapped);
  }
}

// Steps without prompts are preferred: prompts come in bursts just when there is new room, and
// copies that fit beside a prompt do not fit into the decode steps after it.
bool ExpansionControl::Window::decodes() const { return decoding_steps >= kWindowSteps / 4; }

double ExpansionControl::Window::throughput() const {
  const double time = decodes() ? decoding_s : seconds;
  return time > 0 ? static_cast<double>(decodes() ? decoding_tokens : tokens) / time : 0;
}

double ExpansionControl::Window::step_s() const {
  return decodes() ? (decoding_s - decoding_waited_s) / decoding_steps
                   : (seconds - waited_s) / steps;
}

bool ExpansionControl::Window::has_time_to_spare() const {
  return ahead > 0 && static_cast<double>(early) >= kTimeToSpare * static_cast<double>(ahead);
}

// This is the paper's link-saturation condition (3.1).
bool ExpansionControl::fits(size_t level, int32_t used_blocks, double slack) const {
  const int swapped = levels_[level];
  const double load_s = std::min(used_blocks, blocks(level)) * block_bytes_ / rate_;
  const double layer_s = step_s_ / sizes_.layers;
  const double room_s = sizes_.spare_with(swapped) > 1
                            ? step_s_ / swapped
                            : layer_s * (sizes_.layers / swapped - kInUse);
  return load_s <= slack * room_s;
}

int ExpansionControl::next(const LayerSwapMeasure& step) {
  if (levels_.size() == 1) return 0;
  owed_s_ -= step.seconds;
  if (step.changed_s > 0) change_s_ = step.changed_s;
  tried_s_ += step.waited_s;
  if (unmeasured_ > 0) {
    --unmeasured_;
    return swapped_count();
  }
  add(step);
  // Waits that follow its own growth are no passing disturbance, so it reacts sooner.
  const bool is_new = growth_ && growth_->looked == 0;
  const bool waits_long = window_.steps >= (is_new ? 2 : kWindowSteps / 2) &&
                          window_.waited_s > 0.5 * window_.seconds &&
                          (is_new || late_ + 1 >= kShortPatience);
  if (window_.steps >= kWindowSteps || waits_long) decide();
  return swapped_count();
}

void ExpansionControl::add(const LayerSwapMeasure& step) {
  Window& of = window_;
  ++of.steps;
  of.seconds += step.seconds;
  of.waited_s += step.waited_s;
  of.copied_s += step.copied_s;
  of.copied_bytes += step.copied_bytes;
  of.ahead += step.ahead;
  of.early += step.early;
  of.tokens += step.tokens;
  if (!step.has_prompts) {
    ++of.decoding_steps;
    of.decoding_s += step.seconds;
    of.decoding_waited_s += step.waited_s;
    of.decoding_tokens += step.tokens;
  }
  of.pressed += step.memory_pressure ? 1 : 0;
  of.busy += step.link_is_busy ? 1 : 0;
  of.used_blocks = std::max(of.used_blocks, step.used_blocks);
  of.enough_blocks = std::max(of.enough_blocks, step.enough_blocks);
}

void ExpansionControl::go_to(size_t level) {
  level_ = level;
  unmeasured_ = kUnmeasuredSteps;
  late_ = quiet_ = 0;
}

void ExpansionControl::forget() {
  growth_.reset();
  proof_.reset();
  doubt_.reset();
  brought_nothing_ = false;
}

void ExpansionControl::decide() {
  const Window& of = window_;
  if (of.copied_s > 0) rate_ = static_cast<double>(of.copied_bytes) / of.copied_s;
  step_s_ = of.step_s();
  if (tried_ > 0) --tried_;
  if (held_ > 0 && --held_ == 0 && level_ == 0) rate_ = 0;  // the link has not been measured since
  const double waits = of.seconds > 0 ? of.waited_s / of.seconds : 0;
  late_ = level_ > 0 && waits > (is_beyond_estimate() ? kLittleWait : kNoWait) ? late_ + 1 : 0;
  quiet_ = of.pressed == 0 ? quiet_ + 1 : 0;
  const bool is_new = growth_ && growth_->looked++ == 0;
  if (late_ >= (waits <= kLongWait ? kPatience : is_new ? 1 : kShortPatience)) {
    shrink_to_fit(waits);
  } else if (level_ > 0 && 2 * of.busy > of.steps) {
    forget();
    go_to(level_ - 1);
  } else if (level_ > 0 && quiet_ >= kQuietWindows) {
    // A tenth more than is used stays, so that the number does not oscillate.
    const int32_t wanted = std::max(of.used_blocks + of.used_blocks / 10, of.enough_blocks);
    size_t enough = 0;
    while (enough < level_ && blocks(enough) < wanted) ++enough;
    if (enough < level_) go_to(enough);
    forget();
    quiet_ = 0;
  } else if (late_ == 0) {
    grow_or_hold();
  }
  window_ = {};
}

void ExpansionControl::shrink_to_fit(double waits) {
  size_t to = level_ - 1;
  // The level before a growth beyond the estimate was seen to fit, whatever the estimate says,
  // provided that ops wait no longer than the added copies explain.
  size_t least = 0;
  if (is_beyond_estimate()) {
    const double less = bytes_at(seen_) / bytes_at(level_);
    if (waits <= 1 - less + kLongWait) least = seen_;
  }
  while (to > least && rate_ > 0 && !fits(to, window_.used_blocks, kFull)) --to;
  failed_at_ = rate_ * step_s_;
  hold_ = std::clamp(2 * hold_, kFirstHold, kLongestHold);
  held_ = hold_;
  pay_for_try();
  forget();
  go_to(to);
}

void ExpansionControl::pay_for_try() {
  if (std::exchange(tried_, 0) > 0) owed_s_ = (tried_s_ + 2 * change_s_) / kCostOfTries;
}

bool ExpansionControl::is_worthwhile(size_t level, double throughput) const {
  const double more = static_cast<double>(blocks(level)) / blocks(proof_->level) - 1;
  return throughput >= proof_->throughput * (1 + kWorthwhile * more - kNoise);
}

void ExpansionControl::found_worthwhile(size_t level, double throughput) {
  hold_ = 0;
  brought_nothing_ = false;
  const double more = static_cast<double>(blocks(level)) / blocks(proof_->level) - 1;
  if (more >= kProof) proof_ = Proof{level, throughput};
}

void ExpansionControl::resolve_doubt() {
  if (2 * window_.pressed < window_.steps) {  // demand fell, so nothing is comparable any more
    doubt_.reset();
    return;
  }
  ++doubt_->windows;
  doubt_->sum += window_.throughput();
  if (doubt_->windows < kJudgingWindows) return;
  const Doubt of = *std::exchange(doubt_, std::nullopt);
  proof_->throughput = of.sum / of.windows;
  if (is_worthwhile(of.level, of.throughput)) {
    found_worthwhile(of.level, of.throughput);
    go_to(of.level);
    return;
  }
  brought_nothing_ = true;
  pay_for_try();
  hold_ = std::clamp(2 * hold_, kFirstHold, kLongestHold);
  held_ = hold_;
}

void ExpansionControl::judge_growth() {
  if (doubt_) return resolve_doubt();
  if (!growth_) return;
  const double more = static_cast<double>(blocks(level_)) / blocks(proof_->level) - 1;
  // Judges only once the new room is in use. If the waiting requests are too large for it, more
  // growth may follow.
  const bool is_used = window_.used_blocks > blocks(proof_->level);
  const bool can_tell = kWorthwhile * more >= kNoise;
  if (!can_tell || (!is_used && growth_->looked >= kLongestLook)) growth_.reset();
  if (!growth_ || !is_used) return;
  ++growth_->windows;
  growth_->sum += window_.throughput();
  if (growth_->windows < kJudgingWindows) return;
  const double now = growth_->sum / growth_->windows;
  growth_.reset();
  if (is_worthwhile(level_, now)) return found_worthwhile(level_, now);
  doubt_ = Doubt{.level = level_, .throughput = now};
  go_to(proof_->level);
}

void ExpansionControl::grow_or_hold() {
  const size_t before = level_;
  judge_growth();
  if (growth_ || doubt_ || level_ != before) return;
  const bool wanted = 2 * window_.pressed >= window_.steps && window_.busy == 0;
  const bool has_more = failed_at_ > 0 && rate_ * step_s_ > kMuchMore * failed_at_;
  const bool is_held = (held_ > 0 || owed_s_ > 0) && !has_more;
  if (!wanted || level_ + 1 == levels_.size() || is_held) return;
  size_t to = level_ + 1;
  seen_ = 0;
  if (rate_ > 0 && !fits(to, blocks(to), kWorthATry)) {
    if (!window_.has_time_to_spare()) return;
    seen_ = level_;
  } else if (rate_ > 0) {
    // The measured rate of the link holds only for copies of about the measured size.
    const int most = brought_nothing_ ? 0 : kMostGrowth * swapped_count();
    while (to + 1 < levels_.size() && levels_[to + 1] <= most &&
           fits(to + 1, blocks(to + 1), kFull))
      ++to;
  }
  growth_.emplace();
  tried_ = kTryWindows;
  tried_s_ = 0;
  if (!proof_) proof_ = Proof{level_, window_.throughput()};
  failed_at_ = 0;
  held_ = 0;
  owed_s_ = 0;  // any remaining debt is from before the link became faster
  go_to(to);
}

}  // namespace spillway
