// SPDX-License-Identifier: Apache-2.0
// Performs many small copies between device memory and pinned host memory in one kernel launch.
#pragma once

#include <cuda_runtime_api.h>

#include "device/stream.h"

namespace spillway::cuda {

// `pieces` must lie in memory that the device can read (pinned or device memory) and stay there
// until the kernel has ended. Addresses and sizes are multiples of 16. The copy engine reaches only
// 5 GB/s with pieces of 64 KiB; copying threads have no fixed cost per piece. The speed of this
// kernel by itself has not been measured.
void copy_pieces(const CopyPiece* pieces, int count, size_t largest, cudaStream_t stream);

}  // namespace spillway::cuda
