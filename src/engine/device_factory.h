// SPDX-License-Identifier: Apache-2.0
// What makes devices: the engine knows none of them by name, so the program hands this in.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "device/device.h"

namespace spillway {

// A device as people ask for it.
struct DeviceChoice {
  std::string name = "auto";    // cpu, cuda, cuda:N; auto: the first GPU, or the CPU without one
  std::string threads = "0";    // of the CPU: a number, 0 for all, or a list of processors (0-7,16)
  std::string gpu_memory = {};  // such as 16GiB: nothing is taken beyond it; "" = what is free
  std::string host_memory = {};  // likewise
};

class DeviceFactory {
 public:
  virtual ~DeviceFactory() = default;
  // Where `threads` is a list, the calling thread is restricted to these processors, too. Throws
  // kInvalidArgument for what does not exist here or makes no sense, kDevice for what cannot be
  // used.
  virtual std::unique_ptr<Device> make(const DeviceChoice& choice) const = 0;
  // The accelerators that there are, those first that auto means. Makes none of them.
  virtual std::vector<DeviceInfo> gpus() const = 0;
};

}  // namespace spillway
