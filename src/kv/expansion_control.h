// SPDX-License-Identifier: Apache-2.0
// How many layers' KV takes turns on the device: found while serving (Pie, 3.4 and 4.1).
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "kv/layer_table.h"

namespace spillway {

// What came of one step.
struct TurnMeasure {
  double seconds = 0;         // of the step and all that is done for it
  double waited_s = 0;        // of these, ops waited for layers that take turns
  double copied_s = 0;        // the link brought
  uint64_t copied_bytes = 0;  // so much of them
  int64_t ahead = 0;          // loads for it that came while the step before was under way
  int64_t early = 0;          // of these, that were there before that one had ended
  int64_t tokens = 0;         // generated
  bool has_prompts = false;
  bool wants_room = false;    // somebody waits for KV memory, has lost it, or is predicted to
  bool link_is_busy = false;  // others wait for the same link: weights, which go first
  int32_t used_blocks = 0;    // on the device
  int32_t enough_blocks = 0;  // with so many nobody wants room, where that is known
  double changed_s = 0;       // before the step: to let other layers take turns than before
};

// Begins with none. More layers take turns while somebody waits for room, copies are done before
// they are needed, and what the link and a step are measured to take says that more fit, or copies
// are seen to be done with time to spare; fewer when ops wait for layers, at once to what fits by
// these measures. Where throughput does not grow with
// room, it goes no further, and tries again later, each time after twice as long; so it does where
// ops waited. One window of steps in which ops wait changes nothing: that is how disturbances
// that pass are told from those that last. Without demand there are no more than sequences need.
//
// Sees numbers only, and no clock: the same measures give the same answers.
class ExpansionControl {
 public:
  // `layer_block_bytes`: K and V of a block in one layer.
  ExpansionControl(const TurnSizes& sizes, int64_t layer_block_bytes);

  // After a step with so many layers that take turns as it said last: how many should.
  int next(const TurnMeasure& step);
  int turning() const { return levels_[level_]; }
  // What it chooses among: numbers of layers, from none on. Others bring no more room.
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
    int wanting = 0, busy = 0;  // steps
    int32_t used_blocks = 0;    // most
    int32_t enough_blocks = 0;  // most
    bool decodes() const;       // often enough to go by these steps
    double throughput() const;
    double step_s() const;  // without waits
    // Copies are done early as often as the preset ratio says (3.4.2); where none came ahead: no.
    bool has_time_to_spare() const;
  };
  void add(const TurnMeasure& step);
  void decide();
  int32_t blocks(size_t level) const { return sizes_.blocks_with(levels_[level]); }
  // Whether copies of a step at this level have the time they need, or `slack` times that, by what
  // was measured last.
  bool fits(size_t level, int32_t used_blocks, double slack) const;
  // Of a step with all of its room in use, so many times a block's in a layer.
  double bytes_at(size_t level) const {
    return static_cast<double>(levels_[level]) * blocks(level);
  }
  // It has grown only now, and only because copies had time to spare.
  bool is_beyond_reckoning() const { return tried_ > 0 && seen_ > 0 && level_ > seen_; }
  void go_to(size_t level);
  // What growth brought: demand or the link are others now.
  void forget();
  void shrink_to_what_fits(double waits);
  void grow_or_hold();
  void judge_growth();
  // Whether so much throughput at a level is what its room should bring.
  bool is_worthwhile(size_t level, double throughput) const;
  void found_worthwhile(size_t level, double throughput);
  void settle_doubt();
  // It goes back to where it was: if it has grown only now, that was one try too many, which cost
  // waits and two changes.
  void pay_for_try();

  TurnSizes sizes_;
  double block_bytes_;
  std::vector<int> levels_;
  size_t level_ = 0;
  Window window_;
  int settling_ = 0;  // steps after a change that say nothing

  double rate_ = 0;       // bytes per second of the link; 0: nobody knows
  double step_s_ = 0;     // of a step without waits, and without prompts where there are such
  int late_ = 0;          // windows in a row in which ops waited too long
  int quiet_ = 0;         // in which nobody wanted room
  int held_ = 0;          // windows until the next try to grow
  int hold_ = 0;          // how long it was held last
  double failed_at_ = 0;  // bytes that the link could bring in a step when it had to shrink
  double owed_s_ = 0;     // time that must pass before the next try: tries cost little of it all
  double change_s_ = 0;   // what the last change took by itself
  int tried_ = 0;         // windows for which the last growth still counts as a try
  double tried_s_ = 0;    // ops waited since
  // The level before the last growth, where that was only because copies had time to spare; 0: not.
  size_t seen_ = 0;
  // The last growth, until it is known what it brought.
  struct Growth {
    int looked = 0;   // windows since
    int windows = 0;  // with the new room in use
    double sum = 0;   // of their throughput
  };
  std::optional<Growth> growth_;
  // What throughput is compared with: where it was last seen to have grown with room.
  struct Proof {
    size_t level = 0;
    double throughput = 0;
  };
  std::optional<Proof> proof_;
  // A growth that seems to bring nothing. What it is compared with was measured before, maybe in
  // another time (requests that begin together are short together, and more of them have room): the
  // level before it is looked at again, and then it is known.
  struct Doubt {
    size_t level = 0;
    double throughput = 0;
    int windows = 0;  // at the level before
    double sum = 0;   // of their throughput
  };
  std::optional<Doubt> doubt_;
  bool brought_nothing_ = false;  // the last growth
};

}  // namespace spillway
