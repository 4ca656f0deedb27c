// SPDX-License-Identifier: Apache-2.0
// Scratch memory of the host's ops, kept from call to call and charged to the device.
#pragma once

#include <cstddef>
#include <vector>

#include "device/device.h"

namespace spillway {

// Has two shared areas and one per worker, each growing to the largest requested size. Not
// thread-safe: ops reserve before they fork. Throws kOutOfMemory.
class Workspace {
 public:
  Workspace(Device& device, int workers) : device_(device), per_worker_(workers) {}

  // The memory is valid until the next call of the same function; its contents are undefined, and
  // it is aligned to 64 bytes.
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
