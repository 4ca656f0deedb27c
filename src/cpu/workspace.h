// SPDX-License-Identifier: Apache-2.0
// Scratch memory of the host's ops: kept from call to call, charged to the device.
#pragma once

#include <cstddef>
#include <vector>

#include "device/device.h"

namespace spillway {

// One shared area and one per worker, each growing to the largest size asked for. Not thread-safe:
// ops reserve before they fork. Throws kOutOfMemory.
class Workspace {
 public:
  Workspace(Device& device, int workers) : device_(device), per_worker_(workers) {}

  // Valid until the next call of the same function; contents undefined, aligned to 64 bytes.
  float* shared(size_t floats);
  float* queries(size_t floats);
  void reserve_workers(size_t floats);
  float* worker(int index) const {
    return reinterpret_cast<float*>(per_worker_[static_cast<size_t>(index)].data());
  }

 private:
  void grow(Buffer& buffer, size_t floats);

  Device& device_;
  Buffer shared_, queries_;
  std::vector<Buffer> per_worker_;
};

}  // namespace spillway
