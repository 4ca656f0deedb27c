// SPDX-License-Identifier: Apache-2.0
// Decides while serving how many layers are swapped (Pie, 3.4 and 4.1), so that their KV lives in
// host memory and is on the device only for their part of a step (layer_table.h).
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "kv/layer_table.h"

namespace spillway {

// The measurements of one step.
struct LayerSwapMeasure {
  double seconds = 0;         // the step and everything that is done for it
  double waited_s = 0;        // part of `seconds` in which ops waited for swapped layers' KV
  double copied_s = 0;        // the link was busy bringing swapped layers' KV
  uint64_t copied_bytes = 0;  // bytes that it brought in `copied_s`
  int64_t ahead = 0;          // loads for this step that began during the previous step
  int64_t early = 0;          // those of `ahead` that were complete before that step had ended
  int64_t tokens = 0;         // generated
  bool has_prompts = false;
  // A request waits for KV blocks, was preempted, or will be by its predicted length.
  bool memory_pressure = false;
  bool link_is_busy = false;  // weights wait for the same link, and go first
  int32_t used_blocks = 0;    // on the device
  int32_t enough_blocks = 0;  // blocks that would end the memory pressure, if known
  double changed_s = 0;       // spent before the step on changing which layers are swapped
};

// Chooses the number of swapped layers, beginning with none. It swaps more layers under memory
// pressure, if copies are done before they are needed and either the measured times of the link and
// of a step say that more fit, or copies are seen to be done with time to spare. It swaps fewer
// when ops wait for layers, going straight to the number that fits by these measurements. If
// throughput does not grow with the room, it stops growing and tries again later, each time after
// twice as long; likewise after ops have waited. A single interval in which ops wait changes
// nothing, so that a passing disturbance is told from a lasting one. Without demand there are no
// more swapped layers than the sequences need.
//
// It uses no clock, only these numbers: the same measurements give the same answers.
class ExpansionControl {
 public:
  // `layer_block_bytes`: the bytes of K and V of a block in one layer.
  ExpansionControl(const LayerSwapSizes& sizes, int64_t layer_block_bytes);

  // Takes the measurements of a step with swapped_count() layers, and returns how
  // many the next step should have.
  int next(const LayerSwapMeasure& step);
  int swapped_count() const { return levels_[level_]; }
  // The numbers of swapped layers that it chooses among, from 0 up. Other numbers bring no more
  // room.
  const std::vector<int>& levels() const { return levels_; }

 private:
  struct Window {
    int steps = 0;
    double seconds = 0, waited_s = 0, copied_s = 0;
    uint64_t copied_bytes = 0;
    int64_t ahead = 0, early = 0;
    int64_t tokens = 0;
    int decoding_steps = 0;  // without prompts
    double decoding_s = 0, decoding_waited_s = 0;
    int64_t decoding_tokens = 0;
    int pressed = 0, busy = 0;  // steps with memory pressure, with a busy link
    int32_t used_blocks = 0;    // the most of any step
    int32_t enough_blocks = 0;  // the most of any step
    bool decodes() const;       // whether there are enough steps without prompts to go by them
    double throughput() const;
    double step_s() const;  // mean seconds of a step without waits
    // Whether copies are early as often as the preset ratio requires (3.4.2). False if no load came
    // ahead.
    bool has_time_to_spare() const;
  };
  void add(const LayerSwapMeasure& step);
  void decide();
  int32_t blocks(size_t level) const { return sizes_.blocks_with(levels_[level]); }
  // Whether, by the latest measurements, the copies of a step at this level take at most `slack`
  // times the time that they have.
  bool fits(size_t level, int32_t used_blocks, double slack) const;
  // The bytes copied by a step with all its room in use, in units of a block's bytes in one layer.
  double bytes_at(size_t level) const {
    return static_cast<double>(levels_[level]) * blocks(level);
  }
  // Whether it has grown recently, against the estimate, because copies had time to spare.
  bool is_beyond_estimate() const { return tried_ > 0 && seen_ > 0 && level_ > seen_; }
  void go_to(size_t level);
  // Forgets what growth brought, because demand or the link has changed.
  void forget();
  void shrink_to_fit(double waits);
  void grow_or_hold();
  void judge_growth();
  // Whether this throughput at a level is the gain that its room should bring.
  bool is_worthwhile(size_t level, double throughput) const;
  void found_worthwhile(size_t level, double throughput);
  void resolve_doubt();
  // Called when it goes back to an earlier level. If its last growth is recent, that was a failed
  // try; the cost, its waits and two changes, is then owed before the next try.
  void pay_for_try();

  LayerSwapSizes sizes_;
  double block_bytes_;
  std::vector<int> levels_;
  size_t level_ = 0;
  Window window_;
  int unmeasured_ = 0;  // steps after a change that are not measured

  double rate_ = 0;  // bytes per second of the link; 0: unknown
  // Seconds of a step without waits; of steps without prompts, if there are enough of them.
  double step_s_ = 0;
  int late_ = 0;          // consecutive intervals in which ops waited too long
  int quiet_ = 0;         // consecutive intervals without memory pressure
  int held_ = 0;          // intervals until the next try to grow
  int hold_ = 0;          // length of the last hold, in intervals
  double failed_at_ = 0;  // bytes that the link could bring in a step when it last had to shrink
  // Seconds that must pass before the next try, so that tries cost only a small share of the time.
  double owed_s_ = 0;
  double change_s_ = 0;  // seconds that the last change itself took
  int tried_ = 0;        // intervals for which the last growth still counts as a try
  double tried_s_ = 0;   // seconds that ops have waited since then
  // The level before the last growth, if only copies with time to spare were the reason; else 0.
  size_t seen_ = 0;
  // The last growth, until its effect is known.
  struct Growth {
    int looked = 0;   // intervals since
    int windows = 0;  // intervals with the new room in use
    double sum = 0;   // sum of the throughputs of those intervals
  };
  std::optional<Growth> growth_;
  // The reference for throughput: the level at which it was last seen to have grown with room.
  struct Proof {
    size_t level = 0;
    double throughput = 0;
  };
  std::optional<Proof> proof_;
  // A growth that seems to bring nothing. Its reference was measured earlier, maybe under other
  // conditions (requests that begin together are short together, and more of them have room), so
  // the level before it is measured again before deciding.
  struct Doubt {
    size_t level = 0;
    double throughput = 0;
    int windows = 0;  // intervals at the level before
    double sum = 0;   // sum of the throughputs of those intervals
  };
  std::optional<Doubt> doubt_;
  bool brought_nothing_ = false;  // whether the last growth brought nothing
};

}  // namespace spillway
