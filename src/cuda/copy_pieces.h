// SPDX-License-Identifier: Apache-2.0
// Many small copies in one launch, between device memory and pinned host memory.
#pragma once

#include <cuda_runtime_api.h>

#include "device/stream.h"

namespace spillway::cuda {

// `pieces` lies where the device reads it (pinned or device memory) until the kernel has ended.
// Addresses and sizes are multiples of 16. The copy engine takes some 12 us for each piece, which
// is 5 GB/s for 64 KiB; threads that copy reach most of the bus's speed whatever the size.
void copy_pieces(const CopyPiece* pieces, int count, size_t largest, cudaStream_t stream);

}  // namespace spillway::cuda
