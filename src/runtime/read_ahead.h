// SPDX-License-Identifier: Apache-2.0
// Reads the streamed weights that are on disk before the device has room for them, so that the disk
// is busy while weights come from host memory.
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

// A ring of pinned staging buffers of kStreamReadBytes each. The file pieces are read in order, 0,
// 1, ..., n - 1, 0, ..., as far ahead as there are buffers; they are numbered on and on across
// rounds. Called from one thread at a time. The devices and the reader must outlive it.
class ReadAhead {
 public:
  // Without `ahead`, pieces are read only when seek() has named them.
  ReadAhead(Device& device, Device& host, const ExtentReader& reader, int buffers, bool ahead);
  // No copy may read its memory any more.
  ~ReadAhead() = default;

  // Forgets all that has been read, and continues with the first of these pieces.
  void restart(std::vector<Extent> pieces);
  // Announces that pieces [first, end) are needed now. If other pieces were to come next, e.g.
  // after a failure, reading starts over at `first`.
  void seek(int64_t first, int64_t end);
  // Returns the next piece's bytes; waits for them. Throws kIo. They stay valid until the copies
  // queued before sent() are done.
  std::span<const std::byte> take();
  // The copies that read the last piece taken have been queued in `stream`.
  void sent(DeviceStream& stream);
  // Starts the reads that there is room for. Never waits and never throws: take() reports failures.
  void go_on() noexcept;
  // Whether go_on() may have something to do now or soon.
  bool has_more_to_read() const;

 private:
  struct Stage {
    PinnedBuffer memory;
    std::unique_ptr<DeviceEvent> copied;  // the copy out of memory is done
    uint32_t number = 0;                  // of that copy
    ExtentBatch read = {};                // into memory; last: it waits before the memory goes
  };
  Stage& stage(int64_t piece) { return stages_[static_cast<size_t>(piece) % stages_.size()]; }
  void begin(int64_t piece);

  const ExtentReader& reader_;
  const bool ahead_;
  std::unique_ptr<HostSignal> signal_;  // number of the last copy that is done
  std::vector<Stage> stages_;
  std::vector<Extent> pieces_;
  uint32_t copies_ = 0;
  int64_t begun_ = 0, taken_ = 0;
  int64_t wanted_ = 0;  // pieces before this one are needed
};

}  // namespace spillway
