// SPDX-License-Identifier: Apache-2.0
#include "plan/simulate.h"

#include <algorithm>
#include <map>
#include <tuple>
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
      : shape_(shape), keep_events_(keep_events), events_(schedule_step(shape)) {
    prices_.reserve(events_.size());
    weights_there_.resize(shape.slotfuls.size());
    for (const StepEvent& event : events_) prices_.push_back(price(event));
  }

  void run_step() {
    const double before = free_at(Worker::kDevice);
    for (at_ = 0; at_ < events_.size(); ++at_) run(events_[at_]);
    result_.seconds.push_back(free_at(Worker::kDevice) - before);
  }
  SimulatedSteps take() { return std::move(result_); }

 private:
  double& free_at(Worker worker) { return free_[static_cast<size_t>(worker)]; }

  // Occupies its workers, each from when it is free and the event `ready`. Returns when all have
  // done their part.
  double work(const StepEvent& event, double ready) { return work(event, ready, ready); }
  // `readable`: from when on the disk may be at it.
  double work(const StepEvent& event, double ready, double readable) {
    const EventPrice& price = prices_[at_];
    SimulatedEvent done{.event = event};
    // Without overlap nothing begins before all else has ended, and the device waits for it.
    if (!shape_.overlap) ready = readable = *std::max_element(free_.begin(), free_.end());
    double end = ready;
    for (const Worker worker : kAllWorkers) {
      const double seconds = price[worker];
      if (seconds <= 0) continue;
      const auto w = static_cast<size_t>(worker);
      done.begin[w] = std::max(worker == Worker::kDiskRead ? readable : ready, free_at(worker));
      done.end[w] = free_at(worker) = done.begin[w] + seconds;
      result_.busy[w] += seconds;
      end = std::max(end, done.end[w]);
    }
    if (keep_events_) result_.events.push_back(done);
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
    const auto group = std::tuple(event.layer, event.batch, event.group);
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
        rows_there_[event.batch] = work(event, rows_stored_);
        break;
      case StepAction::kTakeRows:
        device_waits_for(rows_there_[event.batch]);
        break;
      case StepAction::kStoreRows:
        if (shape_.batches[static_cast<size_t>(event.batch)].rows_away)
          rows_stored_ = work(event, now);
        break;
      case StepAction::kLoadKv:
        kv_there_[group] = work(event, std::max(kv_left_[kv_loads_ % 2], group_before(event)));
        ++kv_loads_;
        break;
      case StepAction::kAttendSwapped:
        device_waits_for(kv_there_[group]);
        compute(event);
        break;
      case StepAction::kStoreKv:
        kv_stored_[group] = kv_left_[kv_stores_ % 2] = work(event, now);
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
    const bool continues =
        shape_.batches[static_cast<size_t>(event.batch)].swaps[static_cast<size_t>(event.group)];
    return continues ? kv_stored_[{event.layer, event.batch, event.group - 1}] : 0;
  }

  const StepShape& shape_;
  bool keep_events_;
  std::vector<StepEvent> events_;
  std::vector<EventPrice> prices_;
  size_t at_ = 0;  // the event that runs
  std::array<double, kWorkerCount> free_ = {};
  double slot_left_ = 0, host_done_ = 0, linear_done_ = 0;
  double rows_stored_ = 0;             // all that left their slots so far
  std::vector<double> weights_there_;  // by piece
  std::vector<double> read_;           // when pieces from disk were there, on and on
  std::map<int, double> rows_there_;
  std::map<std::tuple<int, int, int>, double> kv_there_, kv_stored_;
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
