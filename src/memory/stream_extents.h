// SPDX-License-Identifier: Apache-2.0
// Brings bytes of files past in pieces, for weights that loading copies or changes: neither the
// file's bytes nor a second copy of them stay in memory.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>

#include "device/device.h"
#include "memory/piece_loop.h"
#include "memory/weight_load_options.h"

namespace spillway {

// Called with bytes [offset, offset + piece.size()) of extents[i], which lie in memory as the
// file's offset is aligned, up to a page. By several threads at a time, each byte once, in any
// order. `piece` is valid until it returns.
using TakePiece = std::function<void(size_t i, uint64_t offset, std::span<const std::byte> piece)>;

// Some pieces are taken, by at most the host's number of threads, while kPiecesAhead others come
// from the disk, past the page cache into a staging buffer each: faulting them in is slower. With
// WeightAccess::kMapped, those that the page cache has already are taken there. Throws kIo,
// kOutOfMemory, kCancelled and whatever `take` throws; options.progress counts the extents' bytes.
// Staging memory is the host's; where all that is known is a device that the host cannot write to,
// it is charged to nobody.
void stream_extents(Device& host, std::span<const std::filesystem::path> paths,
                    std::span<const CutExtent> extents, const WeightLoadOptions& options,
                    const TakePiece& take, uint64_t piece_bytes = kPieceBytes);

}  // namespace spillway
