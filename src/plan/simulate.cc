// SPDX-License-Identifier: Apache-2.0
#include "plan/simulate.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace spillway {
namespace {

constexpr Worker kAllWorkers[] = {Worker::kDevice, Worker::kCpu,      Worker::kToDevice,
                                  Worker::kToHost, Worker::kDiskRead, Worker::kDiskWrite};

// The same waits as the runtime's: weight_stream.h, residual_store.h, kv_swap.h, kv_turns.h,
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
    kv_there_.resize(static_cast<size_t>(shape.layers()) * groups_);
    kv_stored_.resize(kv_there_.size());
    layer_there_.resize(static_cast<size_t>(shape.layers()));
    layer_stored_.resize(layer_there_.size());
    const std::vector<StepEvent> events = schedule_step(shape);
    events_.reserve(events.size());
    prices_.reserve(events.size());
    for (const StepEvent& event : events) add(event, price(event));
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
      const bool only_moves_rows =
          event.subject == EventSubject::kHiddenStates && event.kind != EventKind::kLoad;
      if (only_moves_rows && !batch_of(event).rows_away) return;
      const bool only_computes =
          event.kind == EventKind::kRun || event.subject == EventSubject::kPartitions;
      if (only_computes && has_only_device(price)) {
        const double seconds = price[Worker::kDevice];
        if (seconds <= 0) return;
        const bool beside_cpu = !events_.empty() && events_.back().kind == EventKind::kStart;
        if (!events_.empty() && joinable_) {
          prices_.back()[Worker::kDevice] += seconds;
          return;
        }
        events_.push_back(event);
        prices_.push_back(price);
        joinable_ = !beside_cpu;
        return;
      }
    }
    events_.push_back(event);
    prices_.push_back(price);
    joinable_ = false;
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
  // done their part. `readable`: from when on the disk may be at it.
  double occupy(const StepEvent& event, double ready, double readable) {
    const EventPrice& price = prices_[at_];
    if (keep_events_) result_.events.push_back({.event = event});
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
    return end;
  }
  double work(const StepEvent& event, double ready) { return work(event, ready, ready); }
  double work(const StepEvent& event, double ready, double readable) {
    if (shape_.overlap) return occupy(event, ready, readable);
    // Nothing begins before all else has ended, and the device waits for it.
    const double all_free = all_are_free_at();
    const double end = occupy(event, all_free, all_free);
    device_waits_for(end);
    return end;
  }
  // Only stores of swapped layers go on while the device computes where nothing overlaps.
  double all_are_free_at() const {
    double at = 0;
    for (const Worker worker : kAllWorkers)
      if (worker != Worker::kToHost) at = std::max(at, free_[static_cast<size_t>(worker)]);
    return at;
  }
  // On the device's queue, when what came before is done.
  void compute(const StepEvent& event) {
    free_at(Worker::kDevice) = work(event, free_at(Worker::kDevice));
  }
  void device_waits_for(double time) {
    free_at(Worker::kDevice) = std::max(free_at(Worker::kDevice), time);
  }

  // The one place where the simulation tells events apart.
  void run(const StepEvent& event) {
    switch (event.kind) {
      case EventKind::kLoad:
        return load(event);
      case EventKind::kWait:
        if (double* const there = try_there(event)) device_waits_for(*there);
        return;
      case EventKind::kStart:
        if (event.subject == EventSubject::kPartitions) return compute(event);
        return start_on_cpu(event);
      case EventKind::kJoin:
        if (event.subject == EventSubject::kPartitions) return compute(event);
        return device_waits_for(cpu_done_);
      case EventKind::kStore:
        return store(event);
      case EventKind::kRelease:
        if (event.subject == EventSubject::kWeights) slot_left_ = free_at(Worker::kDevice);
        if (event.subject == EventSubject::kLayerKv) leave_layer(event);
        return;
      case EventKind::kRun:
        if (!started_) return compute(event);
        device_waits_for(std::max(cpu_done_, occupy(event, *started_, *started_)));
        started_.reset();
        return;
    }
  }
  // When what a wait is for has come.
  double* try_there(const StepEvent& event) {
    if (event.subject == EventSubject::kWeights)
      return &weights_there_[static_cast<size_t>(event.group)];
    if (event.subject == EventSubject::kHiddenStates)
      return &rows_there_[static_cast<size_t>(event.batch)];
    if (event.subject == EventSubject::kLayerKv)
      return &layer_there_[static_cast<size_t>(event.layer)];
    return &kv_there_[group_at(event)];
  }
  void load(const StepEvent& event) {
    if (event.subject == EventSubject::kHandOver) return hand_over(event);
    double& there = *try_there(event);
    if (event.subject == EventSubject::kWeights) {
      there = load_weights(event);
    } else if (event.subject == EventSubject::kHiddenStates) {
      there = work(event, rows_stored_);
    } else if (event.subject == EventSubject::kLayerKv) {
      there = load_layer(event);
    } else {
      there = work(event, std::max(kv_left_[kv_loads_ % 2], group_before(event)));
      ++kv_loads_;
    }
  }
  void hand_over(const StepEvent& event) {
    device_waits_for(work(event, free_at(Worker::kDevice)));
  }
  void store(const StepEvent& event) {
    if (event.subject == EventSubject::kHandOver) return hand_over(event);
    const double now = free_at(Worker::kDevice);
    if (event.subject == EventSubject::kHiddenStates) {
      if (batch_of(event).rows_away) rows_stored_ = work(event, now);
    } else if (event.subject == EventSubject::kLayerKv) {
      layer_stored_[static_cast<size_t>(event.layer)] = occupy(event, now, now);
      rewritten_s_ = prices_[at_][Worker::kToHost];
    } else {
      kv_stored_[group_at(event)] = kv_left_[kv_stores_ % 2] = work(event, now);
      ++kv_stores_;
    }
  }
  // Of a linear op the device multiplies its own rows meanwhile, also where nothing overlaps.
  void start_on_cpu(const StepEvent& event) {
    const LoweredLayer& layer = shape_.model->layer(event.layer);
    const bool is_linear = layer.ops[static_cast<size_t>(event.op)].kind == LoweredKind::kLinear;
    if (shape_.overlap || !is_linear) {
      cpu_done_ = work(event, free_at(Worker::kDevice));
    } else {
      started_ = all_are_free_at();
      cpu_done_ = occupy(event, *started_, *started_);
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
  // A swapped layer comes to the buffer that was left last, from when it is not in use. Blocks that
  // were written there are overwritten when they have been stored, which takes as long as storing
  // them. Without a batch: the layer has come already, but for what is missing.
  double load_layer(const StepEvent& event) {
    const auto layer = static_cast<size_t>(event.layer);
    if (event.batch < 0) return std::max(layer_there_[layer], work(event, layer_stored_[layer]));
    if (!shape_.overlap) {
      device_waits_for(buffer_stored_);
      return work(event, 0);
    }
    const double seconds = prices_[at_][Worker::kToDevice];
    const double loaded =
        work(event, std::max({buffer_left_, layer_stored_[layer], layers_loaded_}));
    layers_loaded_ = std::max(loaded, buffer_stored_ + std::min(rewritten_s_, seconds));
    return layers_loaded_;
  }
  void leave_layer(const StepEvent& event) {
    buffer_left_ = free_at(Worker::kDevice);
    buffer_stored_ = layer_stored_[static_cast<size_t>(event.layer)];
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
  double slot_left_ = 0, cpu_done_ = 0;
  std::optional<double> started_;      // the CPU's part of the linear op at hand, without overlap
  double rows_stored_ = 0;             // all that left their slots so far
  std::vector<double> weights_there_;  // by piece
  std::vector<double> read_;           // when pieces from disk were there, on and on
  std::vector<double> rows_there_;     // by batch
  // By layer, batch and group; of a layer there are groups_, of a batch from first_group_ on.
  std::vector<double> kv_there_, kv_stored_;
  std::vector<size_t> first_group_;
  size_t groups_ = 0;
  std::vector<double> layer_there_, layer_stored_;  // by layer
  double layers_loaded_ = 0;                        // all loads of layers so far
  double buffer_left_ = 0, buffer_stored_ = 0;      // of the swapped layer that was used last
  double rewritten_s_ = 0;                          // to load what it had stored
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
