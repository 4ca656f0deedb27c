// SPDX-License-Identifier: Apache-2.0
// Streams bytes of files through memory in pieces, for weights that loading copies or changes:
// neither the file's bytes nor a second copy of them stays in memory.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>

#include "device/device.h"
#include "memory/piece_loop.h"
#include "memory/weight_load_options.h"

namespace spillway {

// Called with bytes [offset, offset + piece.size()) of extents[i]; their alignment in memory is
// that of their file offset, up to a page. Called by several threads concurrently, for each byte
// once, in any order. `piece` is valid until it returns.
using TakePiece = std::function<void(size_t i, uint64_t offset, std::span<const std::byte> piece)>;

// Passes all pieces to `take`, in at most as many threads as the host has, while kPiecesAhead
// others are read from the disk. Reads bypass the page cache, each into a staging buffer, because
// page faults are slower. With WeightAccess::kMapped, pieces that are in the page cache are taken
// from there. Throws kIo, kOutOfMemory, kCancelled and whatever `take` throws; options.progress
// counts the extents' bytes. Staging memory is charged to `host`, unless that is a device whose
// memory the host cannot write; then it is not charged at all.
void stream_extents(Device& host, std::span<const std::filesystem::path> paths,
                    std::span<const CutExtent> extents, const WeightLoadOptions& options,
                    const TakePiece& take, uint64_t piece_bytes = kPieceBytes);

}  // namespace spillway
