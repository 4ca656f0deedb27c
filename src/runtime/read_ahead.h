// SPDX-License-Identifier: Apache-2.0
// Reads what a stream of weights has on disk before the device has room for it: while weights come
// from host memory, the disk has work, too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "device/device.h"
#include "memory/pinned_buffer.h"
#include "storage/extent_reader.h"

namespace spillway {

// A ring of pinned staging buffers, of kStreamReadBytes each. Pieces of files go round: 0, 1, ...,
// n - 1, 0, ..., and are counted on and on; they are read in that order, as far ahead as there are
// buffers. Called from one thread at a time. The devices and the reader must outlive it.
class ReadAhead {
 public:
  // `ahead`: false: nothing is read before seek() tells of it.
  ReadAhead(Device& device, Device& host, const ExtentReader& reader, int buffers, bool ahead);
  // No copy reads its memory any more.
  ~ReadAhead() = default;

  // Forgets all that has been read, and begins with the first of these.
  void restart(std::vector<Extent> pieces);
  // The pieces from `first` to `end` are wanted now. Where others were to come next, e.g. after a
  // failure, they are read again.
  void seek(int64_t first, int64_t end);
  // The next piece's bytes; waits for them. Throws kIo. They stay until sent() and what was then
  // queued.
  std::span<const std::byte> take();
  // The copies that read the bytes are queued there.
  void sent(DeviceStream& stream);
  // Begins to read what there is room for. Never waits, never throws: who takes a piece is told.
  void go_on() noexcept;
  // Whether go_on() may have something to do now or soon.
  bool has_more_to_read() const;

 private:
  struct Stage {
    PinnedBuffer memory;
    std::unique_ptr<DeviceEvent> copied;  // out of it
    uint32_t number = 0;                  // of that copy
    ExtentBatch read = {};                // into it; last: it waits before the memory goes
  };
  Stage& stage(int64_t piece) { return stages_[static_cast<size_t>(piece) % stages_.size()]; }
  void begin(int64_t piece);

  const ExtentReader& reader_;
  const bool ahead_;
  std::unique_ptr<HostSignal> signal_;  // numbers of copies that are done
  std::vector<Stage> stages_;
  std::vector<Extent> pieces_;
  uint32_t copies_ = 0;
  int64_t begun_ = 0, taken_ = 0;
  int64_t wanted_ = 0;  // those before it are
};

}  // namespace spillway
