// SPDX-License-Identifier: Apache-2.0
// Many small copies in one launch, between device memory and pinned host memory.
#pragma once

#include <cuda_runtime_api.h>

#include "device/stream.h"

namespace spillway::cuda {

// `pieces` lies where the device reads it (pinned or device memory) until the kernel has ended.
// Addresses and sizes are multiples of 16. The copy engine reaches 5 GB/s with pieces of 64 KiB;
// threads that copy do not pay for each piece. What they reach has not been measured by itself.
void copy_pieces(const CopyPiece* pieces, int count, size_t largest, cudaStream_t stream);

}  // namespace spillway::cuda
