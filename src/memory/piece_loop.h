// SPDX-License-Identifier: Apache-2.0
// Cuts extents of files into pieces, and runs the loop of several threads over them that all
// loading uses.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "memory/weight_load_options.h"
#include "storage/tensor_index.h"

namespace spillway {

// Large enough for a disk's full speed, small enough that many can be in flight in little memory.
inline constexpr uint64_t kPieceBytes = uint64_t{1} << 20;
// The number of pieces that are read from the disk while every processor is busy with others.
inline constexpr int kPiecesAhead = 4;

struct Piece {
  size_t index;     // index of its extent
  uint64_t offset;  // in the extent
  Extent in_file;
};

struct CutExtent {
  Extent extent;
  uint64_t grain;  // pieces are multiples of it, except an extent's last
};
// Cuts extents into pieces of about `piece_bytes`, in the order in which they lie in the files.
std::vector<Piece> cut_extents(std::span<const CutExtent> extents,
                               uint64_t piece_bytes = kPieceBytes);

// Calls work(piece, worker) with worker < workers once for each piece. Pieces begin in order,
// several at a time; the calling thread takes part. Reports progress after each piece. Stops at the
// first exception and throws it, or throws kCancelled.
void for_each_piece(std::span<const Piece> pieces, int workers, const WeightLoadOptions& options,
                    const std::function<void(const Piece& piece, int worker)>& work);

}  // namespace spillway
