// SPDX-License-Identifier: Apache-2.0
// Kernels of quant_linear() for five and eight bits in simple blocks.
#include "cuda/linear/linear_quant_launch.cuh"

namespace spillway::cuda {

bool launch_quant_q5_0(QuantArgs args, const QuantLinearTuning& tuning,
                       const QuantDeviceLimits& limits, cudaStream_t stream) {
  return launch_quant<BlockQ5_0>(args, tuning, limits, stream);
}

bool launch_quant_q5_1(QuantArgs args, const QuantLinearTuning& tuning,
                       const QuantDeviceLimits& limits, cudaStream_t stream) {
  return launch_quant<BlockQ5_1>(args, tuning, limits, stream);
}

bool launch_quant_q8_0(QuantArgs args, const QuantLinearTuning& tuning,
                       const QuantDeviceLimits& limits, cudaStream_t stream) {
  return launch_quant<BlockQ8_0>(args, tuning, limits, stream);
}

}  // namespace spillway::cuda
