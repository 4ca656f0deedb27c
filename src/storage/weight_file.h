// SPDX-License-Identifier: Apache-2.0
// Weights that are made rather than read (dummy:NAME), written to a temporary file as fast as the
// disk takes them, so that what lives on disk is really there.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "storage/async_io.h"
#include "storage/temporary_file.h"
#include "storage/tensor_index.h"

namespace spillway {

struct WeightFileOptions {
  std::filesystem::path dir;  // --disk-dir
  std::string label = "weights";
  uint64_t bytes = 0;                       // of all extents: bytes_for()
  size_t staging_bytes = size_t{32} << 20;  // memory while writing
  std::span<std::byte> staging = {};        // instead of that: the caller's, as direct I/O wants it
  bool keep_name = false;                   // TemporaryFileOptions
};

// Appends extents to a temporary file, through a ring of staging buffers of which some are on their
// way to the disk while the next is filled. Not thread-safe. Throws kIo, also where the disk has no
// room for all of it, before anything is written. Queue and staging are free after finish().
class WeightFileWriter {
 public:
  // Makes bytes [offset, offset + out.size()) of an extent; called in order, about an eighth of
  // staging_bytes each time, so that several threads may share one call.
  using Fill = std::function<void(uint64_t offset, std::span<std::byte> out)>;

  WeightFileWriter(IoQueue& queue, const WeightFileOptions& options);
  ~WeightFileWriter();
  WeightFileWriter(const WeightFileWriter&) = delete;
  WeightFileWriter& operator=(const WeightFileWriter&) = delete;

  // Each extent begins at a multiple of kDirectAlignment.
  static uint64_t bytes_for(std::span<const uint64_t> extents);

  // Extent::file is 0. Throws kInvalidArgument where `bytes` of the options are used up.
  Extent append(uint64_t bytes, const Fill& fill);
  Extent append(std::span<const std::byte> bytes);

  // Waits until all is written. The file, with its path for readers, lives as long as the result.
  std::unique_ptr<TemporaryFile> finish();

 private:
  struct Stage {
    std::span<std::byte> memory;
    IoTicket ticket;
  };
  void flush();  // the current stage goes to the disk, the next is free

  IoQueue& queue_;
  std::unique_ptr<TemporaryFile> file_;
  AlignedBuffer memory_;
  std::vector<Stage> stages_;
  size_t current_ = 0, filled_ = 0;  // stage, and bytes in it
  uint64_t written_ = 0;             // bytes of the file before the current stage
};

}  // namespace spillway
