// SPDX-License-Identifier: Apache-2.0
// Extents of files cut into pieces, and the loop of several threads over them that all loading is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "memory/weight_load_options.h"
#include "storage/tensor_index.h"

namespace spillway {

// Long enough for a disk's full speed, short enough that many are under way in little memory.
inline constexpr uint64_t kPieceBytes = uint64_t{1} << 20;
// Pieces that are on their way from the disk while every processor is busy with others.
inline constexpr int kPiecesAhead = 4;

struct Piece {
  size_t index;     // of its extent
  uint64_t offset;  // in the extent
  Extent in_file;
};

struct CutExtent {
  Extent extent;
  uint64_t grain;  // pieces are multiples of it, but for the extent's last
};
// Pieces of about `piece_bytes`, in the order in which they are in the files.
std::vector<Piece> cut_extents(std::span<const CutExtent> extents,
                               uint64_t piece_bytes = kPieceBytes);

// Calls work(piece, worker), worker < workers, once for each piece: begun in order, several at a
// time, the calling thread taking part. Reports progress after each, stops at the first exception
// and throws it, or kCancelled.
void for_each_piece(std::span<const Piece> pieces, int workers, const WeightLoadOptions& options,
                    const std::function<void(const Piece& piece, int worker)>& work);

}  // namespace spillway
