// SPDX-License-Identifier: Apache-2.0
// The services that a session needs from the program around it.
#pragma once

#include <atomic>
#include <functional>
#include <string_view>

#include "engine/device_factory.h"
#include "engine/progress.h"

namespace spillway {

// All that it refers to must outlive the session.
struct SessionServices {
  const DeviceFactory& devices;
  StartProgress progress = {};  // of loading, measuring and planning
  // Shows one line to the user; empty: there is no user, and the line goes to the log.
  std::function<void(std::string_view)> notice = {};
  // Loading, measuring and planning read it, and throw kCancelled once it is true; null: they run
  // through.
  const std::atomic<bool>* cancel = nullptr;
};

}  // namespace spillway
