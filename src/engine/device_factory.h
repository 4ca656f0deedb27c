// SPDX-License-Identifier: Apache-2.0
// Makes devices: the engine knows none of them by name, so the program passes a factory in.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "device/device.h"

namespace spillway {

// A device as a user requests it.
struct DeviceChoice {
  std::string name = "auto";    // cpu, cuda, cuda:N; auto: the first GPU, or the CPU without one
  std::string threads = "0";    // of the CPU: a number, 0 for all, or a list of processors (0-7,16)
  std::string gpu_memory = {};  // such as 16GiB: nothing is taken beyond it; "" = what is free
  std::string host_memory = {};  // likewise
};

class DeviceFactory {
 public:
  virtual ~DeviceFactory() = default;
  // Makes a device. If `threads` is a list, the calling thread is restricted to these processors,
  // too. Throws kInvalidArgument for what does not exist here or makes no sense, kDevice for what
  // cannot be used.
  virtual std::unique_ptr<Device> make(const DeviceChoice& choice) const = 0;
  // Returns the accelerators of this machine without making any. The one that `auto` means comes
  // first.
  virtual std::vector<DeviceInfo> gpus() const = 0;
};

}  // namespace spillway
