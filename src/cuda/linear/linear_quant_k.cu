// SPDX-License-Identifier: Apache-2.0
// Kernels of quant_linear() for K-quant types with minima.
#include "cuda/linear/linear_quant_launch.cuh"

namespace spillway::cuda {

bool launch_quant_q4_k(QuantArgs args, const QuantLinearTuning& tuning,
                       const QuantDeviceLimits& limits, cudaStream_t stream) {
  return launch_quant<BlockQ4_K>(args, tuning, limits, stream);
}

bool launch_quant_q5_k(QuantArgs args, const QuantLinearTuning& tuning,
                       const QuantDeviceLimits& limits, cudaStream_t stream) {
  return launch_quant<BlockQ5_K>(args, tuning, limits, stream);
}

}  // namespace spillway::cuda
