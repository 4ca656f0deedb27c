// SPDX-License-Identifier: Apache-2.0
#include "runtime/read_ahead.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "base/error.h"
#include "plan/weight_homes.h"
#include "storage/aligned_buffer.h"

namespace spillway {
namespace {

// Enough for any disk. Other readers of the disk wait for no more reads than these.
constexpr int64_t kReadsInFlight = 32;

}  // namespace

ReadAhead::ReadAhead(Device& device, Device& host, const ExtentReader& reader, int buffers,
                     bool ahead)
    : reader_(reader), ahead_(ahead), signal_(device.make_signal()) {
  SPW_ASSERT(buffers > 0);
  for (int i = 0; i < buffers; ++i) {
    stages_.push_back({.memory = PinnedBuffer(host, device, kStreamStageBytes, MemoryTag::kStaging),
                       .copied = device.make_event()});
  }
}

void ReadAhead::restart(std::vector<Extent> pieces) {
  for (Stage& each : stages_) each.read = {};
  pieces_ = std::move(pieces);
  begun_ = taken_ = wanted_ = 0;
}

void ReadAhead::seek(int64_t first, int64_t end) {
  if (first != taken_) {
    for (Stage& each : stages_) each.read = {};
    begun_ = taken_ = first;
  }
  wanted_ = end;
  go_on();
}

void ReadAhead::begin(int64_t piece) {
  Stage& to = stage(piece);
  to.read = {};
  const Extent& extent = pieces_[static_cast<size_t>(piece) % pieces_.size()];
  to.read = reader_.begin({&extent, 1}, aligned_part(to.memory.data(), to.memory.bytes()));
  ++begun_;
}

bool ReadAhead::has_more_to_read() const {
  if (pieces_.empty()) return false;
  const int64_t last = taken_ + static_cast<int64_t>(stages_.size());
  return begun_ < (ahead_ ? last : std::min(last, wanted_));
}

void ReadAhead::go_on() noexcept {
  try {
    while (has_more_to_read()) {
      const Stage& next = stage(begun_);
      if (!signal_->has_reached(next.number)) return;
      // The disk completes reads roughly in order.
      const int64_t before = begun_ - kReadsInFlight;
      if (before >= taken_ && !stage(before).read.is_done()) return;
      begin(begun_);
    }
  } catch (const std::exception&) {
    // take() tries the piece again, and throws if that fails.
  }
}

std::span<const std::byte> ReadAhead::take() {
  Stage& next = stage(taken_);
  // A read that failed ahead of time may succeed by now, so it is tried once more.
  for (bool again = begun_ > taken_;; again = false) {
    if (begun_ == taken_) {
      next.copied->synchronize();
      begin(taken_);
    }
    go_on();
    try {
      next.read.wait();
      return next.read.bytes(0);
    } catch (const Error&) {
      begun_ = taken_;
      if (!again) throw;
    }
  }
}

void ReadAhead::sent(DeviceStream& stream) {
  Stage& from = stage(taken_++);
  from.number = ++copies_;
  stream.record(*from.copied);
  stream.store(*signal_, from.number);
  go_on();
}

}  // namespace spillway
