// SPDX-License-Identifier: Apache-2.0
#include "plan/simulate.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace spillway {
namespace {

constexpr Worker kAllWorkers[] = {Worker::kDevice, Worker::kCpu,      Worker::kToDevice,
                                  Worker::kToHost, Worker::kDiskRead, Worker::kDiskWrite};

// The lists of a simulation. A search simulates thousands of steps of some ten thousand events, so
// each thread uses its lists again.
struct EventLists {
  std::vector<StepEvent> events;
  std::vector<EventPrice> prices;
};

// Simulates the waits of the runtime: weight_stream.h, residual_store.h, kv_swap.h,
// layer_swapper.h, host_attention.h.
class Simulation {
 public:
  // Every step has the same events at the same prices.
  Simulation(const StepShape& shape, const PriceOfEvent& price, bool keep_events, EventLists& lists)
      : shape_(shape), keep_events_(keep_events), events_(lists.events), prices_(lists.prices) {
    events_.clear();
    prices_.clear();
    weights_there_.resize(shape.slot_groups.size());
    hidden_states_there_.resize(shape.batches.size());
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
  // Adds an event. If events are not kept, consecutive events that only the device takes part in
  // become one: a prompt's micro-batches have ten each in every layer.
  void add(const StepEvent& event, const EventPrice& price) {
    if (!keep_events_ && shape_.overlap) {
      const bool only_moves_hidden_states =
          event.subject == EventSubject::kHiddenStates && event.kind != EventKind::kLoad;
      if (only_moves_hidden_states && !batch_of(event).hidden_states_offloaded) return;
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
  // Returns the index of a group of a batch in a layer, in kv_there_ and kv_stored_.
  size_t group_at(const StepEvent& event) const {
    return static_cast<size_t>(event.layer) * groups_ +
           first_group_[static_cast<size_t>(event.batch)] + static_cast<size_t>(event.group);
  }

  double& free_at(Worker worker) { return free_[static_cast<size_t>(worker)]; }

  // Occupies the event's workers, each as soon as it is free and the event is `ready`. A disk read
  // may start at `readable`. Returns when all of them have finished.
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
    // Without overlap, the event begins after all others have ended, and the device waits for it.
    const double all_free = all_are_free_at();
    const double end = occupy(event, all_free, all_free);
    device_waits_for(end);
    return end;
  }
  // Returns when all workers but the one for copies to the host are free: without overlap, only
  // stores of swapped layers run beside the device's computations.
  double all_are_free_at() const {
    double at = 0;
    for (const Worker worker : kAllWorkers)
      if (worker != Worker::kToHost) at = std::max(at, free_[static_cast<size_t>(worker)]);
    return at;
  }
  // Runs an event on the device's queue, after everything before it.
  void compute(const StepEvent& event) {
    free_at(Worker::kDevice) = work(event, free_at(Worker::kDevice));
  }
  void device_waits_for(double time) {
    free_at(Worker::kDevice) = std::max(free_at(Worker::kDevice), time);
  }

  // Only here does the simulation distinguish kinds of events.
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
  // Returns the time at which the load that the event waits for is finished.
  double* try_there(const StepEvent& event) {
    if (event.subject == EventSubject::kWeights)
      return &weights_there_[static_cast<size_t>(event.group)];
    if (event.subject == EventSubject::kHiddenStates)
      return &hidden_states_there_[static_cast<size_t>(event.batch)];
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
      there = work(event, hidden_states_stored_);
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
      if (batch_of(event).hidden_states_offloaded) hidden_states_stored_ = work(event, now);
    } else if (event.subject == EventSubject::kLayerKv) {
      layer_stored_[static_cast<size_t>(event.layer)] = occupy(event, now, now);
      rewritten_s_ = prices_[at_][Worker::kToHost];
    } else {
      kv_stored_[group_at(event)] = kv_left_[kv_stores_ % 2] = work(event, now);
      ++kv_stores_;
    }
  }
  // Starts the CPU's part of an op. In a linear op, the device multiplies its own rows meanwhile,
  // even without overlap.
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
  // Returns when a weight segment is loaded. Segments on disk are read before a slot is free, as
  // far as there is staging memory.
  double load_weights(const StepEvent& event) {
    const bool is_read = prices_[at_][Worker::kDiskRead] > 0;
    const auto ahead = static_cast<size_t>(shape_.segments_read_ahead);
    if (!is_read || ahead == 0) return work(event, slot_left_);
    const double readable = read_.size() < ahead ? 0 : read_[read_.size() - ahead];
    read_.push_back(work(event, slot_left_, readable));
    return read_.back();
  }
  // Returns when a swapped layer's KV is loaded into the buffer that was used last, once that is
  // free. Blocks that were written there can be overwritten after they have been stored, which
  // takes as long as storing them. For an event without a batch, the layer was loaded in the step
  // before, except for what is missing.
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
  // Returns when the group before, which this one may read, has been stored.
  double group_before(const StepEvent& event) {
    if (event.group == 0) return 0;
    const bool continues = batch_of(event).swaps[static_cast<size_t>(event.group)];
    return continues ? kv_stored_[group_at(event) - 1] : 0;
  }

  const StepShape& shape_;
  bool keep_events_;
  std::vector<StepEvent>& events_;
  std::vector<EventPrice>& prices_;
  // The last event is the device's alone, and may be joined with the next one.
  bool joinable_ = false;
  size_t at_ = 0;  // index of the current event
  std::array<double, kWorkerCount> free_ = {};
  double slot_left_ = 0, cpu_done_ = 0;
  // Start of the CPU's part of the current linear op, without overlap.
  std::optional<double> started_;
  double hidden_states_stored_ = 0;          // when all hidden states so far were stored
  std::vector<double> weights_there_;        // by weight segment
  std::vector<double> read_;                 // when each segment from disk was loaded, in all steps
  std::vector<double> hidden_states_there_;  // by batch
  // By layer, batch and group: a layer has groups_, and a batch's begin at first_group_.
  std::vector<double> kv_there_, kv_stored_;
  std::vector<size_t> first_group_;
  size_t groups_ = 0;
  std::vector<double> layer_there_, layer_stored_;  // by layer
  double layers_loaded_ = 0;                        // when all loads of layers so far are finished
  double buffer_left_ = 0, buffer_stored_ = 0;      // of the swapped layer that was used last
  double rewritten_s_ = 0;                          // seconds to load again what that layer stored
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
  static thread_local EventLists lists;
  Simulation simulation(shape, price, keep_events, lists);
  for (int i = 0; i < steps; ++i) simulation.run_step();
  return simulation.take();
}

}  // namespace spillway
