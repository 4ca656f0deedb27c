// SPDX-License-Identifier: Apache-2.0
#include "runtime/residual_store.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace spillway {
ResidualStore::ResidualStore(TransferScheduler& transfers, Device& host,
                             const ResidualStoreOptions& options)
    : device_(transfers.device()),
      options_(options),
      sizes_(options.sizes.on(device_.host_visible())) {
  Device& device = device_;
  const ResidualBytes bytes = residual_bytes(sizes_, device.host_visible());
  if (bytes.device_rows > 0)
    device_rows_ = device.allocate(bytes.device_rows, MemoryTag::kActivations);
  if (bytes.host > 0) host_rows_ = PinnedBuffer(host, device, bytes.host, MemoryTag::kActivations);
  if (bytes.disk > 0) {
    SPW_ASSERT(options_.queue != nullptr);
    file_ = std::make_unique<RowFile>(
        *options_.queue, options_.disk_dir, "activations", sizes_.row_bytes(),
        static_cast<uint32_t>(sizes_.tokens - sizes_.first_on_disk()), options_.disk_budget);
  }
  if (bytes.bounce > 0) {
    for (PinnedBuffer* bounce : {&bounce_in_, &bounce_out_})
      *bounce = PinnedBuffer(host, device, bytes.bounce, MemoryTag::kStaging);
    for (auto& arrival : arrivals_) arrival = device.make_event();
  }
  const bool reads_in_place = bytes.disk > 0 && device.host_visible();
  slots_.resize(static_cast<size_t>(bytes.slots));
  for (Slot& slot : slots_) {
    slot.memory = device.allocate(bytes.slot, MemoryTag::kActivations);
    slot.rows = reads_in_place ? first_aligned(slot.memory.data()) : slot.memory.data();
    slot.loaded = device.make_event();
    slot.written = device.make_event();
    slot.stored = device.make_event();
  }
  if (slots_.empty()) return;
  in_ = transfers.open_awaited(TransferUse::kHiddenStates, LinkDirection::kToDevice);
  out_ = transfers.open_awaited(TransferUse::kHiddenStates, LinkDirection::kToHost);
}

size_t ResidualStore::bytes_of(int64_t rows) const {
  return sizes_.row_bytes() * static_cast<size_t>(rows);
}

Tier ResidualStore::home_of(int64_t first_row, int64_t rows) const {
  return sizes_.home_of(first_row + rows);
}

std::byte* ResidualStore::in_host_memory(int64_t first_row) const {
  return host_rows_.data() + bytes_of(first_row - sizes_.first_on_host());
}

Activations ResidualStore::rows_at(std::byte* data, int64_t rows) const {
  return {DType::kF32, rows, sizes_.columns, sizes_.columns, data};
}

// The queue to the disk keeps its order. If an item is so old that its event has been reused, the
// oldest event that is left comes after it and is returned.
const DeviceEvent& ResidualStore::arrival_of(int64_t first_row) const {
  const auto events = static_cast<int64_t>(arrivals_.size());
  const auto put = put_numbers_.find(first_row);
  SPW_ASSERT(put != put_numbers_.end());
  const int64_t number = std::max(put->second, disk_puts_ - events);
  return *arrivals_[static_cast<size_t>(number % events)];
}

void ResidualStore::load(int64_t first_row, int64_t rows, StallClock& stalls) {
  Slot& to = slot(loaded_);
  const Tier home = home_of(first_row, rows);
  const int64_t file_row = first_row - sizes_.first_on_disk();
  const size_t bytes = bytes_of(rows);
  if (home == Tier::kDisk) stats_.disk_read_bytes += bytes;
  if (in_place(home)) {
    stalls.time(StallCause::kActivations, [&] { to.write.wait(); });
    to.read = file_->read(file_row, rows, to.rows);
    if (!options_.overlap) stalls.time(StallCause::kActivations, [&] { to.read.wait(); });
    ++loaded_;
    return;
  }
  CopyPiece copy{to.rows, nullptr, bytes};
  if (home == Tier::kDisk) {
    in_->wait(*to.stored);
    in_->wait(arrival_of(first_row));
    std::byte* const bounce = first_aligned(bounce_in_.data());
    in_->run_on_host([file = file_.get(), file_row, rows, bounce] {
      file->read(file_row, rows, bounce).wait();
    });
    copy.from = bounce;
    disk_pending_ = true;
  } else {
    // Wait until the slot's last user has left it, and until what is read here has arrived in host
    // memory.
    for (const Slot& other : slots_) in_->wait(*other.stored);
    copy.from = in_host_memory(first_row);
  }
  in_->copy_to_device({&copy, 1});
  in_->record(*to.loaded);
  stats_.to_device_bytes += bytes;
  if (!options_.overlap) stalls.time(StallCause::kActivations, [&] { in_->synchronize(); });
  ++loaded_;
}

void ResidualStore::expect(int64_t first_row, int64_t rows, StallClock& stalls) {
  if (!is_away(first_row, rows) || expected_row_ >= 0) return;
  load(first_row, rows, stalls);
  expected_row_ = first_row;
}

Activations ResidualStore::take(int64_t first_row, int64_t rows, bool fresh, StallClock& stalls) {
  current_ = {home_of(first_row, rows), first_row, rows};
  if (current_.home == Tier::kDevice)
    return rows_at(device_rows_.data() + bytes_of(first_row), rows);
  SPW_ASSERT(rows <= sizes_.micro_tokens);
  if (expected_row_ >= 0 && (fresh || expected_row_ != first_row)) {
    ++taken_;  // other rows than these were expected
    expected_row_ = -1;
  }
  if (fresh) {
    Slot& to = slot(loaded_++);
    to.read = {};
    stalls.time(StallCause::kActivations, [&] { to.write.wait(); });
    device_.compute().wait(*to.loaded);  // a load that was never taken
    device_.compute().wait(*to.stored);
  } else {
    if (expected_row_ < 0) load(first_row, rows, stalls);
    expected_row_ = -1;
    Slot& from = slot(taken_);
    stalls.time(StallCause::kActivations, [&] {
      from.read.wait();
      device_.compute().wait(*from.loaded);
    });
  }
  return rows_at(slot(taken_++).rows, rows);
}

void ResidualStore::put(StallClock& stalls) {
  if (current_.home == Tier::kDevice) return;
  Slot& from = slot(taken_ - 1);
  const size_t bytes = bytes_of(current_.rows);
  const int64_t file_row = current_.first_row - sizes_.first_on_disk();
  if (current_.home == Tier::kDisk) stats_.disk_written_bytes += bytes;
  if (in_place(current_.home)) {
    device_.synchronize();
    from.write = file_->write(file_row, current_.rows, from.rows);
    disk_pending_ = true;
    if (!options_.overlap) stalls.time(StallCause::kActivations, [&] { from.write.wait(); });
    return;
  }
  device_.compute().record(*from.written);
  out_->wait(*from.written);
  std::byte* const to = current_.home == Tier::kDisk ? first_aligned(bounce_out_.data())
                                                     : in_host_memory(current_.first_row);
  const CopyPiece copy{to, from.rows, bytes};
  out_->copy_to_host({&copy, 1});
  out_->record(*from.stored);
  stats_.to_host_bytes += bytes;
  if (current_.home == Tier::kDisk) {
    // The write runs in this queue, before the next copies to the buffer, so these find it free.
    out_->run_on_host([file = file_.get(), file_row, rows = current_.rows, to] {
      file->write(file_row, rows, to).wait();
    });
    out_->record(*arrivals_[static_cast<size_t>(disk_puts_) % arrivals_.size()]);
    put_numbers_[current_.first_row] = disk_puts_++;
    disk_pending_ = true;
  }
  if (!options_.overlap) stalls.time(StallCause::kActivations, [&] { out_->synchronize(); });
}

void ResidualStore::release() {
  if (current_.home == Tier::kDevice || in_place(current_.home)) return;
  Slot& from = slot(taken_ - 1);
  device_.compute().record(*from.written);
  out_->wait(*from.written);
  out_->record(*from.stored);
}

void ResidualStore::synchronize() {
  if (!std::exchange(disk_pending_, false)) return;
  for (Slot& slot : slots_) slot.write.wait();
  out_->synchronize();  // before the reads, which fail if a write did
  in_->synchronize();
}

void ResidualStore::reset() {
  device_.synchronize();
  const auto drain = [](auto&& wait) {
    try {
      wait();
    } catch (const Error&) {
      // The step that this failure belongs to has already ended with an error.
    }
  };
  if (in_ != nullptr) {
    drain([&] { in_->synchronize(); });
    drain([&] { out_->synchronize(); });
  }
  for (Slot& slot : slots_) {
    drain([&] { slot.read.wait(); });
    drain([&] { slot.write.wait(); });
  }
  disk_pending_ = false;
  taken_ = loaded_;
  expected_row_ = -1;
}

ResidualStore::Stats& ResidualStore::Stats::operator+=(const Stats& other) {
  to_device_bytes += other.to_device_bytes;
  to_host_bytes += other.to_host_bytes;
  disk_read_bytes += other.disk_read_bytes;
  disk_written_bytes += other.disk_written_bytes;
  return *this;
}

}  // namespace spillway
