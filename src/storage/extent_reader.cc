// SPDX-License-Identifier: Apache-2.0
#include "storage/extent_reader.h"

#include <algorithm>
#include <exception>

#include "base/error.h"
#include "base/printable.h"

namespace spillway {
namespace {

uint64_t blocks_around(const Extent& extent) {
  return align_up(extent.offset + extent.bytes) - align_down(extent.offset);
}

}  // namespace

bool ExtentBatch::is_done() const {
  return std::all_of(reads_.begin(), reads_.end(),
                     [](const ExtentRead& read) { return read.ticket.is_done(); });
}

void ExtentBatch::wait() {
  std::exception_ptr first;  // thrown after all reads have ended: the buffer may be reused then
  for (ExtentRead& read : reads_) {
    try {
      read.ticket.wait();
    } catch (...) {
      if (!first) first = std::current_exception();
    }
  }
  if (first) std::rethrow_exception(first);
}

ExtentReader::ExtentReader(IoQueue& queue, std::span<const std::filesystem::path> paths)
    : queue_(queue) {
  for (const auto& path : paths) {
    files_.push_back(std::make_unique<IoFile>(path));
    file_bytes_.push_back(files_.back()->size());
  }
}

const IoFile& ExtentReader::file_at(int32_t file) const {
  SPW_CHECK(file >= 0 && static_cast<size_t>(file) < files_.size(), kInvalidArgument,
            "reading from file {} of {}", file, files_.size());
  return *files_[static_cast<size_t>(file)];
}

size_t ExtentReader::buffer_bytes(std::span<const Extent> extents) {
  size_t total = 0;
  for (const Extent& extent : extents) total += blocks_around(extent);
  return total;
}

ExtentBatch ExtentReader::begin(std::span<const Extent> extents,
                                std::span<std::byte> buffer) const {
  for (const Extent& extent : extents) {  // all are checked before the first read begins
    const IoFile& file = file_at(extent.file);
    const uint64_t size = file_bytes_[static_cast<size_t>(extent.file)];
    SPW_CHECK(extent.offset <= size && extent.bytes <= size - extent.offset, kIo,
              "reading {}: {} bytes at byte {} end past the file's {} bytes",
              printable_path(file.path()), extent.bytes, extent.offset, size);
  }
  SPW_ASSERT(buffer.size() >= buffer_bytes(extents));
  ExtentBatch batch;
  batch.reads_.reserve(extents.size());
  for (const Extent& extent : extents) {
    if (extent.bytes == 0) {
      batch.reads_.push_back({.ticket = {}, .bytes = {}});
      continue;
    }
    batch.reads_.push_back(
        queue_.read_extent(file_at(extent.file), extent.offset, extent.bytes, buffer));
    buffer = buffer.subspan(blocks_around(extent));
  }
  return batch;
}

}  // namespace spillway
