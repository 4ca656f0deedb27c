// SPDX-License-Identifier: Apache-2.0
// What a session needs of the program around it.
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
  // One line for a person who watches; empty: nobody does, and the log has it where it is verbose.
  std::function<void(std::string_view)> notice = {};
  // Loading, measuring and planning look at it, and throw kCancelled once it is true; null: they
  // run through.
  const std::atomic<bool>* cancel = nullptr;
};

}  // namespace spillway
