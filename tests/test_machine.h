// SPDX-License-Identifier: Apache-2.0
// A host and an emulated accelerator beside it, for tests of code that only sees Device.
#pragma once

#include <cstdint>
#include <memory>

#include "cpu/cpu_device.h"
#include "cpu/emulated_accelerator.h"
#include "memory/transfer_scheduler.h"
#include "storage/async_io.h"

namespace spillway {

// The host emulates the accelerator: its memory starts poisoned, and copies to and from it are late
// by up to a millisecond, so that code which does not wait for a copy finds wrong bytes.
struct TestMachine {
  explicit TestMachine(bool has_accelerator, uint64_t pinnable_bytes = ~uint64_t{0})
      : host(CpuDeviceOptions{.threads = 2}) {
    if (has_accelerator) add_accelerator(pinnable_bytes);
    transfers = std::make_unique<TransferScheduler>(device());
  }
  void add_accelerator(uint64_t pinnable_bytes) {
    EmulatedAcceleratorOptions options;
    options.max_delay_us = 1000;
    options.pinnable_bytes = pinnable_bytes;
    accelerator = std::make_unique<EmulatedAccelerator>(options);
  }
  // The device that ops run on.
  Device& device() { return accelerator ? static_cast<Device&>(*accelerator) : host; }
  uint64_t used(MemoryTag tag) { return device().usage().bytes[static_cast<int>(tag)]; }

  CpuDevice host;
  IoQueue queue;  // has no threads as long as nothing is on disk
  std::unique_ptr<EmulatedAccelerator> accelerator;
  std::unique_ptr<TransferScheduler> transfers;  // of device()
};

}  // namespace spillway
