// SPDX-License-Identifier: Apache-2.0
// The three choices that a scheduler leaves to others: who is next, who may begin, who gives way.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "base/tier.h"
#include "schedule/admission.h"
#include "schedule/request_id.h"

namespace spillway {

// What policies may know of a sequence.
struct SequenceView {
  RequestId id{};
  int32_t prompt = 0;
  int32_t known = 0;       // tokens: the prompt and what was generated
  int64_t expected = 0;    // tokens in the end; 0 where nobody knows
  int priority = 0;        // lower ones matter more
  uint64_t client = 0;     // whose it is
  double mean_answer = 0;  // tokens, of those that ended or are expected to; 0: nobody knows
  // Tokens in the end, as they are promised room: as predicted, twice that of the answer each time
  // it went beyond. Not more than expected; 0 where nobody predicts.
  int64_t reserved = 0;
  int outgrown = 0;  // how often it went beyond
  // Blocks of one group of layers, BlockAllocator::forecast_group() where nothing else is said:
  // those that it holds, and the most that a sequence of any length holds at once.
  int64_t blocks = 0;
  int64_t most_blocks = kAnyBlocks;
  std::optional<Tier> pool = {};  // where; nothing: it has none

  static constexpr int64_t kAnyBlocks = int64_t{1} << 40;
};

// In which order requests begin. A sequence that had begun and lost its blocks goes before all of
// them.
class QueueOrder {
 public:
  struct Rank {
    double value = 0;  // lower ones begin first, equal ones as they came
    double cost = 0;   // how far it puts back what its client sends behind it, at the same priority
  };
  virtual ~QueueOrder() = default;
  // Of a request that comes.
  virtual Rank rank(const SequenceView& arriving) = 0;
  // The one with this rank begins.
  virtual void began(double /*rank*/) {}
  // It is gone before it began. Those behind it that it had put back move up by its cost.
  virtual void left(const SequenceView& /*leaving*/, double /*cost*/) {}
};

class FirstComeFirstServed : public QueueOrder {
 public:
  Rank rank(const SequenceView&) override { return {}; }
};

// Self-clocked fair queueing: clients that want more than there is get the same share of it,
// whatever they send, and a priority doubles or halves a request's weight with each step. No rank
// is ever passed for ever: those of newcomers grow with what has begun.
class FairOrder : public QueueOrder {
 public:
  Rank rank(const SequenceView& arriving) override;
  void began(double rank) override;
  void left(const SequenceView& leaving, double cost) override;

 private:
  double clock_ = 0;  // the rank of the last that began
  // Of a client's requests with one priority; those behind the clock go.
  std::map<std::pair<uint64_t, int>, double> last_;
  size_t clean_at_ = 64;
};

// How many may begin in a step, beside what there is room for.
struct AdmissionState {
  int running = 0;
  double mean_answer = 0;  // 0: nobody knows
};

// What there will be room for in one group of layers, within one step's plan.
class RoomForecast {
 public:
  virtual ~RoomForecast() = default;
  // Whether it may begin beside all others; it is then one of them.
  [[nodiscard]] virtual bool try_add(const SequenceView& next) = 0;
  // The last one that was added is not one of them: another group has no room for it. Once.
  virtual void take_back() = 0;
};

class Admission {
 public:
  virtual ~Admission() = default;
  // For a step, of each paged group; `running` are those that go on, `blocks` what they hold and
  // what is free. Null: whoever has room for what is known of it begins.
  virtual std::unique_ptr<RoomForecast> forecast(std::span<const SequenceView> /*running*/,
                                                 int64_t /*blocks*/) const {
    return nullptr;
  }
  // Others that begin before one that the forecast has no room for, until nobody does any more.
  virtual int most_passing() const { return 0; }
  virtual int max_sequences() const = 0;  // at once
  // Of this step. One that was preempted may always come back.
  virtual int most_newcomers(const AdmissionState& state) const = 0;
  virtual bool prompts_first() const { return false; }
  // So many began; `full`: the next one found no room.
  virtual void began(int /*newcomers*/, bool /*full*/, int /*running_before*/) {}
};

// As a plan's schedule has it.
class PlannedAdmission : public Admission {
 public:
  explicit PlannedAdmission(const AdmissionPolicy& policy) : policy_(policy) {}
  int max_sequences() const override { return policy_.max_sequences; }
  int most_newcomers(const AdmissionState& state) const override;
  bool prompts_first() const override { return policy_.prompts_first; }
  void began(int newcomers, bool full, int running_before) override;

 private:
  int block_room(int running) const { return running == 0 ? policy_.max_sequences : block_room_; }
  AdmissionPolicy policy_;
  int block_room_ = 0;  // sequences that may still join the block
};

// Who gives its blocks back when there are none, to be computed again later.
class VictimChoice {
 public:
  virtual ~VictimChoice() = default;
  // The index of one of them; `running`, not empty, in the order in which they began.
  virtual size_t choose(std::span<const SequenceView> running) const = 0;
};

// The least is lost that way, and the oldest is sure to end.
class YoungestGivesWay : public VictimChoice {
 public:
  size_t choose(std::span<const SequenceView> running) const override { return running.size() - 1; }
};

struct SchedulingPolicies {
  std::unique_ptr<QueueOrder> order;     // null: first come, first served
  std::unique_ptr<Admission> admission;  // null: as the limits say
  std::unique_ptr<VictimChoice> victim;  // null: the youngest
};

}  // namespace spillway
