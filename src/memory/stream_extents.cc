// SPDX-License-Identifier: Apache-2.0
#include "memory/stream_extents.h"

#include <algorithm>
#include <optional>
#include <semaphore>
#include <vector>

#include "base/thread_pool.h"
#include "memory/mapped_extents.h"
#include "storage/direct_reader.h"

namespace spillway {
namespace {

// Lets at most `threads` threads take pieces at a time; the others read.
class Taker {
 public:
  Taker(const TakePiece& take, int threads) : take_(take), free_(threads) {}

  void operator()(const Piece& piece, std::span<const std::byte> bytes) {
    free_.acquire();
    struct Release {
      std::counting_semaphore<>& free;
      ~Release() { free.release(); }
    } const release{free_};
    take_(piece.index, piece.offset, bytes);
  }

 private:
  const TakePiece& take_;
  std::counting_semaphore<> free_;
};

}  // namespace

void stream_extents(Device& host, std::span<const std::filesystem::path> paths,
                    std::span<const CutExtent> extents, const WeightLoadOptions& options,
                    const TakePiece& take, uint64_t piece_bytes) {
  const std::vector<Piece> pieces = cut_extents(extents, piece_bytes);
  if (pieces.empty()) return;
  uint64_t largest = 0;
  for (const Piece& piece : pieces) largest = std::max(largest, piece.in_file.bytes);
  const int threads = host.host_visible() ? host.info().threads : available_threads();
  const auto workers = std::min(pieces.size(), static_cast<size_t>(threads + kPiecesAhead));
  const size_t buffer_bytes = DirectReader::buffer_bytes(largest);
  const size_t staging_bytes = workers * buffer_bytes + kDirectAlignment;
  Buffer charged;
  AlignedBuffer uncharged;
  if (host.host_visible()) {
    charged = host.allocate(staging_bytes, MemoryTag::kStaging);
  } else {
    uncharged = AlignedBuffer(staging_bytes);
  }
  std::byte* const staging = charged.empty() ? uncharged.data() : charged.data();
  std::byte* const buffers = first_aligned(staging);

  const DirectReader reader(paths);
  std::optional<MappedExtents> maps;
  if (options.access == WeightAccess::kMapped) {
    std::vector<Extent> mapped;
    for (const CutExtent& cut : extents) mapped.push_back(cut.extent);
    maps.emplace(paths, mapped);
  }
  Taker taker(take, threads);
  for_each_piece(pieces, static_cast<int>(workers), options, [&](const Piece& piece, int worker) {
    if (maps && maps->is_cached(piece.in_file)) {
      maps->populate(piece.in_file);
      taker(piece, maps->bytes(piece.in_file));
      maps->drop(piece.in_file);
    } else {
      const std::span buffer(buffers + static_cast<size_t>(worker) * buffer_bytes, buffer_bytes);
      taker(piece, reader.read(piece.in_file, buffer));
    }
  });
}

}  // namespace spillway
