// SPDX-License-Identifier: Apache-2.0
// Part of Session: describes the machine for planning: its memories, its speed, and what has been
// measured of it.
#include <algorithm>
#include <string>

#include "base/error.h"
#include "base/host_memory.h"
#include "base/log.h"
#include "engine/measure_this_machine.h"
#include "engine/profile_splits.h"
#include "engine/session.h"
#include "plan/greedy_placement.h"
#include "plan/plan_request.h"
#include "runtime/device_traits.h"

namespace spillway {
namespace {

// Tenths of the free bytes of unified memory that plans may take.
constexpr uint64_t kFreeTenths = 9;

// Returns the budget of each memory. For host memory it is the free bytes, or, if an option limits
// it, the limit less the bytes `taken` by other parts of this program.
Budgets budgets_of(const SessionOptions& options, const Device& device, const Device& host,
                   uint64_t taken) {
  const DeviceInfo& gpu = device.info();
  const bool is_limited = !options.placement.host_memory.empty();
  const auto limit = static_cast<uint64_t>(host.info().memory_bytes);
  const uint64_t allowed = limit - std::min(limit, taken);
  if (!device.host_visible() && gpu.unified_memory) {
    const uint64_t free = static_cast<uint64_t>(host_memory().available_bytes) +
                          device.usage().total() + host.usage().total();
    const auto device_bytes = static_cast<uint64_t>(gpu.memory_bytes);
    Budgets both = share_one_memory(std::min(free / 10 * kFreeTenths, device_bytes),
                                    options.gpu_memory.empty() ? 0 : device_bytes,
                                    is_limited ? std::max<uint64_t>(1, allowed) : 0);
    both.disk = options.placement.disk_bytes();
    both.host_taken = is_limited ? taken : 0;
    return both;
  }
  Budgets budgets;
  budgets.host_is_limited = is_limited;
  budgets.device = device.host_visible() ? 0 : static_cast<uint64_t>(device.info().memory_bytes);
  budgets.host = is_limited ? allowed : static_cast<uint64_t>(host_memory().available_bytes);
  budgets.host_taken = is_limited ? taken : 0;
  budgets.disk = options.placement.disk_bytes();
  return budgets;
}

// Describes the machine as a session uses it: without a GPU that does not compute; and one that
// does has memory of its own, if only by a budget.
ChosenHardware machine_of_session(const Device& device, const Device& host) {
  const bool discrete = !device.host_visible();
  ChosenHardware machine = this_machine(host.info(), discrete ? &device.info() : nullptr);
  Hardware& hardware = machine.hardware;
  if (hardware.unified) {
    hardware.unified = false;
    hardware.to_device = hardware.to_host = RateCurve(hardware.host.read_bytes_per_s);
  }
  return machine;
}

}  // namespace

const ChosenHardware& Session::machine() const {
  if (!machine_) machine_ = machine_of_session(*device, host());
  return *machine_;
}

Budgets Session::budgets_now() const {
  Budgets budgets = budgets_of(options_, *device, host(), run_.host_bytes_taken);
  // Memory that was allocated for the previous plan is available to this one, too.
  if (!budgets.host_is_limited && !device->info().unified_memory)
    budgets.host += host().usage().total();
  return budgets;
}

DeviceTraits Session::traits_within(const Budgets& budgets) const {
  return with_budgets(traits_of(*device, host()), budgets);
}

// Measures this machine, and how CPU and GPU share the model's linear layers, unless it is known.
// Results may change with it, so it is only done with --tune.
void Session::measure_missing() {
  if (device->host_visible() || device->info().unified_memory) return;
  const auto path = try_default_hardware_path();
  SPW_CHECK(path.has_value(), kInvalidArgument,
            "neither XDG_CACHE_HOME nor HOME is set, so --tune has no place to keep what it "
            "measures");
  auto known = try_measured_here(host().info(), &device->info());
  if (!known) {
    log_info("--tune: this machine has not been measured yet");
    known = measure_this_machine(host(), device.get(), disk_dir, kProfileSeconds, services_);
    write_hardware_file(*path, *known);
  }
  if (known->host.threads == host().info().threads) {
    profile_splits(host(), *device, loaded->model, options_.model, /*again=*/false, *known, *path,
                   services_);
  } else {
    log_warning(
        "--tune: this machine was measured with {} threads, and {} are used; nothing more "
        "is measured",
        known->host.threads, host().info().threads);
  }
  machine_.reset();
}

}  // namespace spillway
