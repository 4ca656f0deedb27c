// SPDX-License-Identifier: Apache-2.0
// Kernels of quant_linear() for four bits in simple blocks.
#include "cuda/linear/linear_quant_launch.cuh"

namespace spillway::cuda {

bool launch_quant_q4_0(QuantArgs args, const QuantLinearTuning& tuning,
                       const QuantDeviceLimits& limits, cudaStream_t stream) {
  return launch_quant<BlockQ4_0>(args, tuning, limits, stream);
}

bool launch_quant_q4_1(QuantArgs args, const QuantLinearTuning& tuning,
                       const QuantDeviceLimits& limits, cudaStream_t stream) {
  return launch_quant<BlockQ4_1>(args, tuning, limits, stream);
}

bool launch_quant_g4(QuantArgs args, const QuantLinearTuning& tuning,
                     const QuantDeviceLimits& limits, cudaStream_t stream) {
  return launch_quant<BlockG4>(args, tuning, limits, stream);
}

}  // namespace spillway::cuda
