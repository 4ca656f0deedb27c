// SPDX-License-Identifier: Apache-2.0
// How long steps take on a machine that need not be here: the decoder's own list of events
// (block_schedule.h), each with a price, on queues that work beside each other.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <vector>

#include "plan/block_schedule.h"

namespace spillway {

// What works by itself, each thing after the other.
enum class Worker : uint8_t { kDevice, kCpu, kToDevice, kToHost, kDiskRead, kDiskWrite };
inline constexpr int kWorkerCount = 6;
const char* worker_name(Worker worker);

// Seconds of an event on each worker that has to do with it. Of a transfer over several they
// overlap: it goes in pieces.
struct EventPrice {
  std::array<double, kWorkerCount> seconds = {};
  double& operator[](Worker worker) { return seconds[static_cast<size_t>(worker)]; }
  double operator[](Worker worker) const { return seconds[static_cast<size_t>(worker)]; }
};
using PriceOfEvent = std::function<EventPrice(const StepEvent&)>;

struct SimulatedEvent {
  StepEvent event;
  // On each worker, from the start of the first step; both 0: it has nothing to do with it.
  std::array<double, kWorkerCount> begin = {}, end = {};
};

struct SimulatedSteps {
  std::vector<double> seconds;  // of each step, until the device has done its last event
  std::array<double, kWorkerCount> busy = {};
  std::vector<SimulatedEvent> events;  // where they are kept
};

// `steps` of one shape, one after the other; each event's price is asked for once. With overlap the
// slots for weights are full before the first, which is then shorter than those after it.
SimulatedSteps simulate_steps(const StepShape& shape, int steps, const PriceOfEvent& price,
                              bool keep_events = true);

}  // namespace spillway
