// SPDX-License-Identifier: Apache-2.0
// The properties of the current GPU that kernel launchers use.
#pragma once

namespace spillway::cuda {

struct GpuShape {
  int sms = 132;
  // 10 * major + minor of the GPU or, if that is less, of the architecture our code was compiled
  // for, as kernels cannot use newer features (an H100 can run code built for sm_80, which has no
  // bulk copies).
  int compute_capability = 90;
  int shared_bytes = 227 << 10;  // most shared memory of a thread block
};
// Returns the properties of the current device, which are read once per device. Throws kDevice.
GpuShape current_gpu();

}  // namespace spillway::cuda
