// SPDX-License-Identifier: Apache-2.0
// Keeps steps that a device has recorded, segment by segment, and replays them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "base/error.h"
#include "device/ops.h"

namespace spillway {

// Owns the recordings of the most recently used steps. Steps with equal keys call the same ops with
// the same arguments, in equally many segments. Used from one thread.
template <class Key, class Recording>
class RecordedSteps {
 public:
  // Replays the step if it is known. Otherwise its ops are called: directly the first time, so that
  // whatever has to be allocated or loaded is, and recorded the second time. For segment i,
  // compute(i) calls its ops, and record(i) calls them too and returns a Recording. What these
  // throw is passed on, and then nothing of the step is kept that was not kept before.
  template <class Compute, class Record, class Replay>
  void run(const Key& key, std::span<const StepPart> parts, const Compute& compute,
           const Record& record, const Replay& replay) {
    const auto each = [&](const auto& work) {
      for (size_t i = 0; i < parts.size(); ++i) {
        if (parts[i].before) parts[i].before();
        work(i);
      }
    };
    const auto found = steps_.find(key);
    if (found == steps_.end()) {
      each(compute);
      make_room();
      steps_[key].last_use = ++uses_;
      return;
    }
    Step& step = found->second;
    step.last_use = ++uses_;
    if (step.parts.empty()) {
      // Either all segments are recorded or none, since ops of a segment may need state that calls
      // in the segment before have left.
      std::vector<Recording> recorded;
      each([&](size_t i) { recorded.push_back(record(i)); });
      step.parts = std::move(recorded);
      ++recordings_;
      return;
    }
    SPW_ASSERT(step.parts.size() == parts.size());
    each([&](size_t i) { replay(step.parts[i]); });
    ++replays_;
  }

  // The numbers of steps so far.
  int64_t recordings() const { return recordings_; }
  int64_t replays() const { return replays_; }

 private:
  struct Step {
    std::vector<Recording> parts;
    uint64_t last_use = 0;
  };
  void make_room() {
    if (steps_.size() < kMostSteps) return;
    steps_.erase(std::min_element(steps_.begin(), steps_.end(), [](const auto& a, const auto& b) {
      return a.second.last_use < b.second.last_use;
    }));
  }

  static constexpr size_t kMostSteps = 64;
  std::map<Key, Step> steps_;
  uint64_t uses_ = 0;
  int64_t recordings_ = 0, replays_ = 0;
};

}  // namespace spillway
