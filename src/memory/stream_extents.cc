// SPDX-License-Identifier: Apache-2.0
#include "memory/stream_extents.h"

#include <algorithm>
#include <future>
#include <vector>

#include "base/error.h"
#include "storage/direct_reader.h"
#include "storage/file.h"

namespace spillway {
namespace {

struct Piece {
  size_t index;     // of its extent
  uint64_t offset;  // in the extent
  Extent in_file;
};

std::vector<Piece> cut(std::span<const StreamedExtent> extents, uint64_t piece_bytes) {
  std::vector<Piece> pieces;
  for (size_t i = 0; i < extents.size(); ++i) {
    const auto& [extent, grain] = extents[i];
    SPW_ASSERT(grain > 0);
    const uint64_t step = std::max(grain, piece_bytes / grain * grain);
    for (uint64_t at = 0; at < extent.bytes; at += step) {
      const uint64_t bytes = std::min(step, extent.bytes - at);
      pieces.push_back({i, at, {extent.file, extent.offset + at, bytes}});
    }
  }
  return pieces;
}

// After each piece: what every loader looks at between two steps.
class Report {
 public:
  Report(std::span<const Piece> pieces, const WeightLoadOptions& options) : options_(options) {
    for (const Piece& piece : pieces) total_ += piece.in_file.bytes;
  }
  void taken(const Piece& piece) {
    done_ += piece.in_file.bytes;
    if (options_.progress) options_.progress(done_, total_);
  }
  void check_cancelled() const {
    SPW_CHECK(options_.cancel == nullptr || !options_.cancel->load(), kCancelled,
              "loading was stopped");
  }

 private:
  const WeightLoadOptions& options_;
  uint64_t done_ = 0, total_ = 0;
};

void stream_mapped(std::span<const std::filesystem::path> paths, std::span<const Piece> pieces,
                   const WeightLoadOptions& options, const TakePiece& take) {
  std::vector<MappedFile> maps;
  for (const auto& path : paths) maps.emplace_back(path);
  const auto map_of = [&](const Piece& piece) -> MappedFile& {
    return maps.at(static_cast<size_t>(piece.in_file.file));
  };
  for (const Piece& piece : pieces) {
    const uint64_t size = map_of(piece).bytes().size();
    // The file may have shrunk since its header was read.
    SPW_CHECK(piece.in_file.offset <= size && piece.in_file.bytes <= size - piece.in_file.offset,
              kIo, "{}: the file has become shorter while it was being opened",
              paths[static_cast<size_t>(piece.in_file.file)].string());
  }
  Report report(pieces, options);
  for (size_t i = 0; i < pieces.size(); ++i) {
    report.check_cancelled();
    if (i + 1 < pieces.size()) {
      const Extent& next = pieces[i + 1].in_file;
      map_of(pieces[i + 1]).advise_willneed(next.offset, next.bytes);
    }
    const Extent& now = pieces[i].in_file;
    const MappedFile& map = map_of(pieces[i]);
    take(pieces[i].index, pieces[i].offset, map.bytes().subspan(now.offset, now.bytes));
    map.advise_dontneed(now.offset, now.bytes);
    report.taken(pieces[i]);
  }
}

void stream_direct(Device& device, std::span<const std::filesystem::path> paths,
                   std::span<const Piece> pieces, const WeightLoadOptions& options,
                   const TakePiece& take) {
  uint64_t largest = 0;
  for (const Piece& piece : pieces) largest = std::max(largest, piece.in_file.bytes);
  // Room to put a piece at its file offset's place in a page, where reads land without a copy.
  const size_t buffer_bytes = largest + 2 * kDirectAlignment;
  const Buffer buffers[2] = {device.allocate(buffer_bytes, MemoryTag::kStaging),
                             device.allocate(buffer_bytes, MemoryTag::kStaging)};
  const auto place = [&](size_t i) -> std::span<std::byte> {
    std::byte* const data = buffers[i % 2].data();
    const uint64_t wanted = pieces[i].in_file.offset % kDirectAlignment;
    const uint64_t there = reinterpret_cast<uintptr_t>(data) % kDirectAlignment;
    return {data + (wanted + kDirectAlignment - there) % kDirectAlignment,
            static_cast<size_t>(pieces[i].in_file.bytes)};
  };
  const DirectReader reader({paths.begin(), paths.end()});
  const auto read = [&](size_t i) {
    const ReadRequest request{pieces[i].in_file.file, pieces[i].in_file.offset, place(i)};
    ReadOptions read_options;
    read_options.cancel = options.cancel;
    reader.read({&request, 1}, read_options);
  };
  Report report(pieces, options);
  std::future<void> next = std::async(std::launch::async, read, 0);
  for (size_t i = 0; i < pieces.size(); ++i) {
    next.get();
    report.check_cancelled();
    // Should take() throw, the future waits for the read into the other buffer before both go.
    if (i + 1 < pieces.size()) next = std::async(std::launch::async, read, i + 1);
    take(pieces[i].index, pieces[i].offset, place(i));
    report.taken(pieces[i]);
  }
}

}  // namespace

void stream_extents(Device& device, std::span<const std::filesystem::path> paths,
                    std::span<const StreamedExtent> extents, const WeightLoadOptions& options,
                    const TakePiece& take, uint64_t piece_bytes) {
  const std::vector<Piece> pieces = cut(extents, piece_bytes);
  if (pieces.empty()) return;
  if (options.access == WeightAccess::kMapped) {
    stream_mapped(paths, pieces, options, take);
  } else {
    stream_direct(device, paths, pieces, options, take);
  }
}

}  // namespace spillway
