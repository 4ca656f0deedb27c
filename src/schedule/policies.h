// SPDX-License-Identifier: Apache-2.0
// The three policies of a scheduler: queue order, admission and preemption.
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

// The facts about a sequence that policies may use.
struct SequenceView {
  RequestId id{};
  int32_t prompt = 0;
  int32_t known = 0;       // tokens of the prompt and of the answer so far
  int64_t expected = 0;    // tokens in the end; 0: unknown
  int priority = 0;        // lower ones matter more
  uint64_t client = 0;     // whose request it is
  double mean_answer = 0;  // tokens, of answers that ended or are expected; 0: unknown
  // Tokens in the end for which room is promised: the prediction, in which the answer is doubled
  // each time the sequence exceeds it. At most `expected`; 0 without a prediction.
  int64_t reserved = 0;
  int exceeded = 0;  // how often it exceeded its prediction
  // Blocks of one group of layers (BlockAllocator::forecast_group() unless said otherwise): those
  // that the sequence holds, and the most that one of any length holds at the same time.
  int64_t blocks = 0;
  int64_t most_blocks = kAnyBlocks;
  std::optional<Tier> pool = {};  // memory of its blocks; nullopt: it has none

  static constexpr int64_t kAnyBlocks = int64_t{1} << 40;
};

// Decides in which order requests begin. Preempted sequences go before all of them.
class QueueOrder {
 public:
  struct Rank {
    double value = 0;  // lower ones begin first, equal ones in order of arrival
    double cost = 0;   // delay of its client's later requests with the same priority
  };
  virtual ~QueueOrder() = default;
  // Ranks a request that arrives.
  virtual Rank rank(const SequenceView& arriving) = 0;
  // Called when the request with this rank begins.
  virtual void began(double /*rank*/) {}
  // Called when a request leaves before it began. Later requests that it had delayed move up by
  // `cost`.
  virtual void left(const SequenceView& /*leaving*/, double /*cost*/) {}
};

class FirstComeFirstServed : public QueueOrder {
 public:
  Rank rank(const SequenceView&) override { return {}; }
};

// Self-clocked fair queueing: when clients want more than there is, each gets the same share,
// whatever it sends. Each level of priority doubles or halves a request's weight. No request is
// overtaken for ever, because the ranks of new ones grow with those that have begun.
class FairOrder : public QueueOrder {
 public:
  Rank rank(const SequenceView& arriving) override;
  void began(double rank) override;
  void left(const SequenceView& leaving, double cost) override;

 private:
  double clock_ = 0;  // the rank of the last request that began
  // The last rank of a client's requests with one priority; entries below the clock are removed.
  std::map<std::pair<uint64_t, int>, double> last_;
  size_t clean_at_ = 64;
};

// The state that limits the admissions of a step, apart from room.
struct AdmissionState {
  int running = 0;
  double mean_answer = 0;  // 0: unknown
};

// Predicts the room in one group of layers, within one step's plan.
class RoomForecast {
 public:
  virtual ~RoomForecast() = default;
  // Adds a sequence and returns true if it may run beside all others.
  [[nodiscard]] virtual bool try_add(const SequenceView& next) = 0;
  // Removes the sequence that was added last, and no other, because another group has no room for
  // it.
  virtual void take_back() = 0;
};

class Admission {
 public:
  virtual ~Admission() = default;
  // Makes the forecast of a step for one paged group; `running` are the sequences that continue,
  // `blocks` the blocks that they hold and the free ones. Null: a request begins if there is room
  // for its known tokens.
  virtual std::unique_ptr<RoomForecast> forecast(std::span<const SequenceView> /*running*/,
                                                 int64_t /*blocks*/) const {
    return nullptr;
  }
  // How many requests may overtake one for which the forecast has no room, before it
  // blocks the queue.
  virtual int max_overtaking() const { return 0; }
  virtual int max_sequences() const = 0;  // the most that run concurrently
  // The most admissions in this step. A preempted sequence may always come back.
  virtual int max_admissions(const AdmissionState& state) const = 0;
  virtual bool prompts_first() const { return false; }
  // Called after `admissions` requests were admitted; `full`: the next request found no room.
  virtual void began(int /*admissions*/, bool /*full*/, int /*running_before*/) {}
};

// Admits requests as a plan's schedule says.
class PlannedAdmission : public Admission {
 public:
  explicit PlannedAdmission(const AdmissionPolicy& policy) : policy_(policy) {}
  int max_sequences() const override { return policy_.max_sequences; }
  int max_admissions(const AdmissionState& state) const override;
  bool prompts_first() const override { return policy_.prompts_first; }
  void began(int admissions, bool full, int running_before) override;

 private:
  int block_room(int running) const { return running == 0 ? policy_.max_sequences : block_room_; }
  AdmissionPolicy policy_;
  // Sequences that may still begin with those of the batch block (admission.h).
  int block_room_ = 0;
};

// The preemption policy: chooses which sequence loses its blocks when none are free. It is computed
// again later.
class PreemptionPolicy {
 public:
  virtual ~PreemptionPolicy() = default;
  // Returns the index of a sequence; `running` is not empty, and in the order in which they began.
  virtual size_t choose(std::span<const SequenceView> running) const = 0;
};

// Preempting the youngest sequence loses the least, and the oldest is sure to end.
class PreemptYoungest : public PreemptionPolicy {
 public:
  size_t choose(std::span<const SequenceView> running) const override { return running.size() - 1; }
};

struct SchedulingPolicies {
  std::unique_ptr<QueueOrder> order;             // null: first come, first served
  std::unique_ptr<Admission> admission;          // null: limited by SchedulerLimits
  std::unique_ptr<PreemptionPolicy> preemption;  // null: the youngest
};

}  // namespace spillway
