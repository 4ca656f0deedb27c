// SPDX-License-Identifier: Apache-2.0
// Makes the devices of a session in a test: a CPU with one thread, and an accelerator beside it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/byte_units.h"
#include "cpu/cpu_device.h"
#include "cpu/emulated_accelerator.h"
#include "engine/device_factory.h"

namespace spillway {

// Every name but cpu gives an accelerator that the host emulates.
class TestDevices final : public DeviceFactory {
 public:
  std::unique_ptr<Device> make(const DeviceChoice& choice) const override {
    asked.push_back(choice.name);
    CpuDeviceOptions host{.threads = 1};
    if (const auto bytes = try_parse_bytes(choice.host_memory))
      host.memory_bytes = static_cast<uint64_t>(*bytes);
    if (choice.name == "cpu") return std::make_unique<CpuDevice>(host);
    EmulatedAcceleratorOptions accelerator;
    if (const auto bytes = try_parse_bytes(choice.gpu_memory))
      accelerator.memory_bytes = static_cast<uint64_t>(*bytes);
    return std::make_unique<EmulatedAccelerator>(accelerator);
  }
  std::vector<DeviceInfo> gpus() const override { return {}; }

  mutable std::vector<std::string> asked;  // requested names, in order
};

}  // namespace spillway
