// SPDX-License-Identifier: Apache-2.0
// Brings bytes of files past in pieces, for weights that loading changes: neither the file's bytes
// nor a second copy of them stay in memory.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>

#include "device/device.h"
#include "memory/resident_weights.h"
#include "storage/tensor_index.h"

namespace spillway {

struct StreamedExtent {
  Extent extent;
  uint64_t grain;  // pieces are multiples of it, but for an extent's last
};
// Called with bytes [offset, offset + piece.size()) of extents[i]: extent after extent, front to
// back, on the calling thread. `piece` is valid until it returns.
using TakePiece = std::function<void(size_t i, uint64_t offset, std::span<const std::byte> piece)>;

// About this much is taken at a time.
inline constexpr uint64_t kStreamPieceBytes = uint64_t{16} << 20;

// Mapped, the pages of a piece leave this process when it is taken; read directly, the next piece
// is read into one of two staging buffers while this one is taken. Throws kIo, kOutOfMemory,
// kCancelled and whatever `take` throws; options.progress counts the extents' bytes.
void stream_extents(Device& device, std::span<const std::filesystem::path> paths,
                    std::span<const StreamedExtent> extents, const WeightLoadOptions& options,
                    const TakePiece& take, uint64_t piece_bytes = kStreamPieceBytes);

}  // namespace spillway
