// SPDX-License-Identifier: Apache-2.0
// What launchers need to know of the GPU at hand.
#pragma once

namespace spillway::cuda {

struct GpuShape {
  int sms = 132;
  // 10 * major + minor of the GPU or, where that is less, of what our code was compiled for:
  // kernels know nothing newer (an H100 can run what was built for sm_80, which has no bulk
  // copies).
  int compute_capability = 90;
  int shared_bytes = 227 << 10;  // that a block may have
};
// Of the current device; asked once per device. Throws kDevice.
GpuShape current_gpu();

}  // namespace spillway::cuda
