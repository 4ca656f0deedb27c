// SPDX-License-Identifier: Apache-2.0
// Kernels of quant_linear() for K-quant types with a scale for 16 columns.
#include "cuda/linear/linear_quant_launch.cuh"

namespace spillway::cuda {

bool launch_quant_q2_k(QuantArgs args, const QuantLinearTuning& tuning,
                       const QuantDeviceLimits& limits, cudaStream_t stream) {
  return launch_quant<BlockQ2_K>(args, tuning, limits, stream);
}

bool launch_quant_q3_k(QuantArgs args, const QuantLinearTuning& tuning,
                       const QuantDeviceLimits& limits, cudaStream_t stream) {
  return launch_quant<BlockQ3_K>(args, tuning, limits, stream);
}

bool launch_quant_q6_k(QuantArgs args, const QuantLinearTuning& tuning,
                       const QuantDeviceLimits& limits, cudaStream_t stream) {
  return launch_quant<BlockQ6_K>(args, tuning, limits, stream);
}

}  // namespace spillway::cuda
