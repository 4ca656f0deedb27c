// SPDX-License-Identifier: Apache-2.0
#include "storage/weight_file.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/error.h"

namespace spillway {
namespace {

constexpr size_t kStages = 8;

}  // namespace

uint64_t WeightFileWriter::bytes_for(std::span<const uint64_t> extents) {
  uint64_t total = 0;
  for (const uint64_t bytes : extents) total += align_up(bytes);
  return total;
}

WeightFileWriter::WeightFileWriter(IoQueue& queue, const WeightFileOptions& options)
    : queue_(queue),
      file_(std::make_unique<TemporaryFile>(TemporaryFileOptions{.dir = options.dir,
                                                                 .label = options.label,
                                                                 .bytes = align_up(options.bytes),
                                                                 .keep_name = options.keep_name})),
      memory_(options.staging.empty()
                  ? AlignedBuffer(std::max(options.staging_bytes, kStages * kDirectAlignment))
                  : AlignedBuffer()) {
  const std::span<std::byte> staging = options.staging.empty() ? memory_.span() : options.staging;
  SPW_ASSERT(is_aligned(staging.data()) && staging.size() >= kStages * kDirectAlignment);
  const size_t each = align_down(staging.size() / kStages);
  for (size_t i = 0; i < kStages; ++i) {
    stages_.push_back({.memory = staging.subspan(i * each, each), .ticket = {}});
  }
}

// The tickets wait in their destructors, before the memory and the file are freed.
WeightFileWriter::~WeightFileWriter() { stages_.clear(); }

void WeightFileWriter::flush() {
  if (filled_ == 0) return;
  Stage& stage = stages_[current_];
  stage.ticket = queue_.write(file_->file(), written_, stage.memory.first(filled_));
  written_ += filled_;
  filled_ = 0;
  current_ = (current_ + 1) % stages_.size();
  stages_[current_].ticket.wait();
}

Extent WeightFileWriter::append(uint64_t bytes, const Fill& fill) {
  SPW_ASSERT(file_ != nullptr && bytes > 0);
  const Extent extent{.file = 0, .offset = written_ + filled_, .bytes = bytes};
  SPW_CHECK(bytes <= file_->bytes() - extent.offset, kInvalidArgument,
            "{} bytes at byte {} of a weight file of {}", bytes, extent.offset, file_->bytes());
  for (uint64_t done = 0; done < bytes;) {
    const std::span<std::byte> room = stages_[current_].memory.subspan(filled_);
    const size_t length = std::min<uint64_t>(room.size(), bytes - done);
    fill(done, room.first(length));
    done += length;
    const size_t padded = align_up(length);
    std::memset(room.data() + length, 0, padded - length);
    filled_ += padded;
    if (filled_ == stages_[current_].memory.size()) flush();
  }
  return extent;
}

Extent WeightFileWriter::append(std::span<const std::byte> bytes) {
  return append(bytes.size(), [&](uint64_t offset, std::span<std::byte> out) {
    std::memcpy(out.data(), bytes.data() + offset, out.size());
  });
}

std::unique_ptr<TemporaryFile> WeightFileWriter::finish() {
  SPW_ASSERT(file_ != nullptr);
  flush();
  for (Stage& stage : stages_) stage.ticket.wait();
  return std::move(file_);
}

}  // namespace spillway
