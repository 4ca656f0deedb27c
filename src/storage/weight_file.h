// SPDX-License-Identifier: Apache-2.0
// Writes weights that are not read from a model's files (dummy:NAME, converted ones) to a temporary
// file as fast as the disk takes them, so that weights placed on disk are really read from there.
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
  uint64_t bytes = 0;                       // size of all extents: bytes_for()
  size_t staging_bytes = size_t{32} << 20;  // memory used while writing
  std::span<std::byte> staging = {};        // if set, the caller's memory to use instead; aligned
  bool keep_name = false;                   // see TemporaryFileOptions
};

// Appends extents to a temporary file. Some of its staging buffers are in flight to the disk while
// the next one is filled. Not thread-safe. Throws kIo, also if the disk has no room for all
// extents, before anything is written. Queue and staging are no longer used after finish().
class WeightFileWriter {
 public:
  // Makes bytes [offset, offset + out.size()) of an extent. Called in order, with about an eighth
  // of staging_bytes each time, so that several threads can share the work of one call.
  using Fill = std::function<void(uint64_t offset, std::span<std::byte> out)>;

  WeightFileWriter(IoQueue& queue, const WeightFileOptions& options);
  ~WeightFileWriter();
  WeightFileWriter(const WeightFileWriter&) = delete;
  WeightFileWriter& operator=(const WeightFileWriter&) = delete;

  // The size of a file with these extents, each of which begins at a multiple of kDirectAlignment.
  static uint64_t bytes_for(std::span<const uint64_t> extents);

  // Appends an extent; its Extent::file is 0. Throws kInvalidArgument if it exceeds the options'
  // `bytes`.
  Extent append(uint64_t bytes, const Fill& fill);
  Extent append(std::span<const std::byte> bytes);

  // Waits until all is written. The file, with its path for readers, lives as long as the result.
  std::unique_ptr<TemporaryFile> finish();

 private:
  struct Stage {
    std::span<std::byte> memory;
    IoTicket ticket;
  };
  void flush();  // writes the current stage and takes the next one

  IoQueue& queue_;
  std::unique_ptr<TemporaryFile> file_;
  AlignedBuffer memory_;
  std::vector<Stage> stages_;
  size_t current_ = 0, filled_ = 0;  // the stage being filled, and the bytes in it
  uint64_t written_ = 0;             // bytes of the file before the current stage
};

}  // namespace spillway
