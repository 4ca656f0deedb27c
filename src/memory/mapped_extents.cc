// SPDX-License-Identifier: Apache-2.0
#include "memory/mapped_extents.h"

#include "base/error.h"
#include "base/numa.h"
#include "base/printable.h"
#include "memory/piece_loop.h"

namespace spillway {

MappedExtents::MappedExtents(std::span<const std::filesystem::path> paths,
                             std::span<const Extent> extents) {
  for (const auto& path : paths) maps_.emplace_back(files_.emplace_back(path));
  for (const Extent& extent : extents) {
    const size_t size = maps_.at(static_cast<size_t>(extent.file)).bytes().size();
    SPW_CHECK(extent.offset <= size && extent.bytes <= size - extent.offset, kIo,
              "{}: the file has become shorter while it was being opened",
              printable_path(files_[static_cast<size_t>(extent.file)].path()));
  }
}

std::span<const std::byte> MappedExtents::bytes(const Extent& extent) const {
  return maps_.at(static_cast<size_t>(extent.file)).bytes().subspan(extent.offset, extent.bytes);
}

bool MappedExtents::is_cached(const Extent& extent) const noexcept {
  return maps_[static_cast<size_t>(extent.file)].is_cached(extent.offset, extent.bytes);
}

void MappedExtents::read_ahead(const Extent& extent, std::span<std::byte> scratch) const {
  const InterleavedFaults spread;
  files_.at(static_cast<size_t>(extent.file))
      .read_exact(extent.offset, scratch.first(extent.bytes));
}

void MappedExtents::populate(const Extent& extent) const {
  const InterleavedFaults spread;
  const auto file = static_cast<size_t>(extent.file);
  SPW_CHECK(maps_.at(file).try_populate(extent.offset, extent.bytes), kIo,
            "reading {}: {} bytes at byte {} cannot be read; has the file been truncated?",
            printable_path(files_[file].path()), extent.bytes, extent.offset);
}

void MappedExtents::drop(const Extent& extent) const noexcept {
  maps_[static_cast<size_t>(extent.file)].advise_dontneed(extent.offset, extent.bytes);
}

void populate_all(const MappedExtents& maps, std::span<const Extent> extents, int workers,
                  const WeightLoadOptions& options) {
  std::vector<CutExtent> whole;
  for (const Extent& extent : extents) whole.push_back({extent, 1});
  std::vector<std::vector<std::byte>> scratch(static_cast<size_t>(workers));
  for_each_piece(cut_extents(whole), workers, options, [&](const Piece& piece, int worker) {
    if (!maps.is_cached(piece.in_file)) {
      auto& bytes = scratch[static_cast<size_t>(worker)];
      bytes.resize(kPieceBytes);
      maps.read_ahead(piece.in_file, bytes);
    }
    maps.populate(piece.in_file);
  });
}

}  // namespace spillway
