// SPDX-License-Identifier: Apache-2.0
// Simulates how long steps take on a machine, which need not be present: the decoder's own list of
// events (block_schedule.h), each with a price, runs on concurrent queues.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <vector>

#include "plan/block_schedule.h"

namespace spillway {

// The workers of a machine: each does one thing at a time, concurrently with the others.
enum class Worker : uint8_t { kDevice, kCpu, kToDevice, kToHost, kDiskRead, kDiskWrite };
inline constexpr int kWorkerCount = 6;
const char* worker_name(Worker worker);

// The seconds that an event takes on each worker that takes part in it. The parts of a transfer
// over several workers overlap, because it is done in chunks.
struct EventPrice {
  std::array<double, kWorkerCount> seconds = {};
  double& operator[](Worker worker) { return seconds[static_cast<size_t>(worker)]; }
  double operator[](Worker worker) const { return seconds[static_cast<size_t>(worker)]; }
};
using PriceOfEvent = std::function<EventPrice(const StepEvent&)>;

struct SimulatedEvent {
  StepEvent event;
  // Times on each worker from the start of the first step; both are 0 if the worker takes no part.
  std::array<double, kWorkerCount> begin = {}, end = {};
};

struct SimulatedSteps {
  std::vector<double> seconds;  // of each step, until the device has finished its last event
  std::array<double, kWorkerCount> busy = {};
  std::vector<SimulatedEvent> events;  // empty unless they are kept
};

// Simulates `steps` consecutive steps of one shape. `price` is called once for each event. With
// overlap the weight slots are full before the first step, which is therefore shorter than the
// later ones.
SimulatedSteps simulate_steps(const StepShape& shape, int steps, const PriceOfEvent& price,
                              bool keep_events = true);

}  // namespace spillway
