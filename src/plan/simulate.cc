// SPDX-License-Identifier: Apache-2.0
#include "plan/simulate.h"

#include <algorithm>
#include <utility>

namespace spillway {
namespace {

constexpr Worker kAllWorkers[] = {Worker::kDevice, Worker::kCpu,      Worker::kToDevice,
                                  Worker::kToHost, Worker::kDiskRead, Worker::kDiskWrite};

// The same waits as the runtime's: weight_stream.h, residual_store.h, kv_swap.h,
// host_attention.h.
class Simulation {
 public:
  // Every step has the same events at the same prices.
  Simulation(const StepShape& shape, const PriceOfEvent& price, bool keep_events)
      : shape_(shape), keep_events_(keep_events) {
    weights_there_.resize(shape.slotfuls.size());
    rows_there_.resize(shape.batches.size());
    for (const BatchShape& batch : shape.batches) {
      first_group_.push_back(groups_);
      groups_ += batch.swaps.size();
    }
    kv_there_.resize(static_cast<size_t>(shape.layers) * groups_);
    kv_stored_.resize(kv_there_.size());
    for (const StepEvent& event : schedule_step(shape)) add(event, price(event));
  }

  void run_step() {
    const double before = free_at(Worker::kDevice);
    for (at_ = 0; at_ < events_.size(); ++at_) run(events_[at_]);
    result_.seconds.push_back(free_at(Worker::kDevice) - before);
  }
  SimulatedSteps take() { return std::move(result_); }

 private:
  // Events that only the device has to do with, one behind the other, are one where they are not
  // shown: a prompt's micro-batches have ten each in every layer.
  void add(const StepEvent& event, const EventPrice& price) {
    if (!keep_events_ && shape_.overlap) {
      if (only_moves_rows(event.action) && !batch_of(event).rows_away) return;
      if (only_computes(event.action) && has_only_device(price)) {
        const double seconds = price[Worker::kDevice];
        if (seconds <= 0) return;
        if (!events_.empty() && joinable_) {
          prices_.back()[Worker::kDevice] += seconds;
          return;
        }
        events_.push_back({StepAction::kAttend});
        prices_.push_back(price);
        joinable_ = true;
        return;
      }
    }
    events_.push_back(event);
    prices_.push_back(price);
    joinable_ = false;
  }
  static bool only_moves_rows(StepAction action) {
    return action == StepAction::kTakeRows || action == StepAction::kStoreRows ||
           action == StepAction::kDropRows;
  }
  static bool only_computes(StepAction action) {
    switch (action) {
      case StepAction::kMultiply:
      case StepAction::kEmbed:
      case StepAction::kProject:
      case StepAction::kBeginParts:
      case StepAction::kAttend:
      case StepAction::kEndParts:
      case StepAction::kAttentionOut:
      case StepAction::kUp:
      case StepAction::kDown:
      case StepAction::kFinishLayer:
      case StepAction::kGather:
      case StepAction::kHead:
        return true;
      default:
        return false;
    }
  }
  static bool has_only_device(const EventPrice& price) {
    return std::all_of(price.seconds.begin() + 1, price.seconds.end(),
                       [](double seconds) { return seconds <= 0; });
  }
  const BatchShape& batch_of(const StepEvent& event) const {
    return shape_.batches[static_cast<size_t>(event.batch)];
  }
  // Of a group of a batch in a layer, in kv_there_ and kv_stored_.
  size_t group_at(const StepEvent& event) const {
    return static_cast<size_t>(event.layer) * groups_ +
           first_group_[static_cast<size_t>(event.batch)] + static_cast<size_t>(event.group);
  }

  double& free_at(Worker worker) { return free_[static_cast<size_t>(worker)]; }

  // Occupies its workers, each from when it is free and the event `ready`. Returns when all have
  // done their part.
  double work(const StepEvent& event, double ready) { return work(event, ready, ready); }
  // `readable`: from when on the disk may be at it.
  double work(const StepEvent& event, double ready, double readable) {
    const EventPrice& price = prices_[at_];
    if (keep_events_) result_.events.push_back({.event = event});
    // Without overlap nothing begins before all else has ended, and the device waits for it.
    if (!shape_.overlap) ready = readable = *std::max_element(free_.begin(), free_.end());
    double end = ready;
    for (const Worker worker : kAllWorkers) {
      const double seconds = price[worker];
      if (seconds <= 0) continue;
      const auto w = static_cast<size_t>(worker);
      const double begin =
          std::max(worker == Worker::kDiskRead ? readable : ready, free_at(worker));
      free_at(worker) = begin + seconds;
      result_.busy[w] += seconds;
      end = std::max(end, free_at(worker));
      if (!keep_events_) continue;
      result_.events.back().begin[w] = begin;
      result_.events.back().end[w] = free_at(worker);
    }
    if (!shape_.overlap) device_waits_for(end);
    return end;
  }
  // On the device's queue, when what came before is done.
  void compute(const StepEvent& event) {
    free_at(Worker::kDevice) = work(event, free_at(Worker::kDevice));
  }
  void device_waits_for(double time) {
    free_at(Worker::kDevice) = std::max(free_at(Worker::kDevice), time);
  }

  void run(const StepEvent& event) {
    const double now = free_at(Worker::kDevice);
    switch (event.action) {
      case StepAction::kLoadWeights:
        weights_there_[static_cast<size_t>(event.group)] = load_weights(event);
        break;
      case StepAction::kUseWeights:
        device_waits_for(weights_there_[static_cast<size_t>(event.group)]);
        break;
      case StepAction::kLeaveWeights:
        slot_left_ = now;
        break;
      case StepAction::kLoadRows:
        rows_there_[static_cast<size_t>(event.batch)] = work(event, rows_stored_);
        break;
      case StepAction::kTakeRows:
        device_waits_for(rows_there_[static_cast<size_t>(event.batch)]);
        break;
      case StepAction::kStoreRows:
        if (batch_of(event).rows_away) rows_stored_ = work(event, now);
        break;
      case StepAction::kLoadKv:
        kv_there_[group_at(event)] =
            work(event, std::max(kv_left_[kv_loads_ % 2], group_before(event)));
        ++kv_loads_;
        break;
      case StepAction::kAttendSwapped:
        device_waits_for(kv_there_[group_at(event)]);
        compute(event);
        break;
      case StepAction::kStoreKv:
        kv_stored_[group_at(event)] = kv_left_[kv_stores_ % 2] = work(event, now);
        ++kv_stores_;
        break;
      case StepAction::kStartOnHost:
        host_done_ = work(event, now);
        break;
      case StepAction::kJoinHost:
        device_waits_for(host_done_);
        break;
      case StepAction::kProject:
      case StepAction::kAttentionOut:
      case StepAction::kUp:
      case StepAction::kDown:
      case StepAction::kHead:
        linear_done_ = work(event, now);  // also of the CPU, beside what the device does next
        break;
      case StepAction::kJoinLinear:
        device_waits_for(linear_done_);
        break;
      case StepAction::kDropRows:
        break;
      default:
        compute(event);
    }
  }
  // What is on disk is read before there is room in a slot, as far as staging memory goes.
  double load_weights(const StepEvent& event) {
    const bool is_read = prices_[at_][Worker::kDiskRead] > 0;
    const auto ahead = static_cast<size_t>(shape_.pieces_read_ahead);
    if (!is_read || ahead == 0) return work(event, slot_left_);
    const double readable = read_.size() < ahead ? 0 : read_[read_.size() - ahead];
    read_.push_back(work(event, slot_left_, readable));
    return read_.back();
  }
  // When the group before it, which it may read, is back.
  double group_before(const StepEvent& event) {
    if (event.group == 0) return 0;
    const bool continues = batch_of(event).swaps[static_cast<size_t>(event.group)];
    return continues ? kv_stored_[group_at(event) - 1] : 0;
  }

  const StepShape& shape_;
  bool keep_events_;
  std::vector<StepEvent> events_;
  std::vector<EventPrice> prices_;
  bool joinable_ = false;  // the last event is the device's alone, and joined with others
  size_t at_ = 0;          // the event that runs
  std::array<double, kWorkerCount> free_ = {};
  double slot_left_ = 0, host_done_ = 0, linear_done_ = 0;
  double rows_stored_ = 0;             // all that left their slots so far
  std::vector<double> weights_there_;  // by piece
  std::vector<double> read_;           // when pieces from disk were there, on and on
  std::vector<double> rows_there_;     // by batch
  // By layer, batch and group; of a layer there are groups_, of a batch from first_group_ on.
  std::vector<double> kv_there_, kv_stored_;
  std::vector<size_t> first_group_;
  size_t groups_ = 0;
  std::array<double, 2> kv_left_ = {};
  size_t kv_loads_ = 0, kv_stores_ = 0;
  SimulatedSteps result_;
};

}  // namespace

const char* worker_name(Worker worker) {
  constexpr std::array kNames = {"GPU", "CPU", "to GPU", "to host", "disk read", "disk write"};
  return kNames[static_cast<size_t>(worker)];
}

SimulatedSteps simulate_steps(const StepShape& shape, int steps, const PriceOfEvent& price,
                              bool keep_events) {
  Simulation simulation(shape, price, keep_events);
  for (int i = 0; i < steps; ++i) simulation.run_step();
  return simulation.take();
}

}  // namespace spillway
