// SPDX-License-Identifier: Apache-2.0
#include "runtime/residual_store.h"

#include <algorithm>

#include "base/error.h"

namespace spillway {

ResidualStore::ResidualStore(Device& device, Device& host, const ResidualStoreOptions& options)
    : device_(device), options_(options) {
  options_.device_tokens = std::min(options_.device_tokens, options_.tokens);
  const auto bytes = [&](int64_t rows) {
    return static_cast<size_t>(row_bytes(DType::kF32, rows * options.columns));
  };
  if (options_.device_tokens > 0)
    device_rows_ = device.allocate(bytes(options_.device_tokens), MemoryTag::kActivations);
  if (options_.device_tokens == options_.tokens) return;
  // A micro-batch that is not on the device whole is in host memory whole.
  host_rows_ = PinnedBuffer(host, device, bytes(options_.tokens), MemoryTag::kActivations);
  for (Slot& slot : slots_) {
    slot.memory = device.allocate(bytes(options_.micro_tokens), MemoryTag::kActivations);
    slot.loaded = device.make_event();
    slot.written = device.make_event();
    slot.stored = device.make_event();
  }
  in_ = device.make_stream();
  out_ = device.make_stream();
}

size_t ResidualStore::bytes_of(int64_t rows) const {
  return static_cast<size_t>(row_bytes(DType::kF32, rows * options_.columns));
}

void ResidualStore::load(int64_t first_row, int64_t rows) {
  Slot& to = slot(loaded_);
  // Whoever had the slot has left it, and what is read here has arrived.
  for (const Slot& other : slots_) in_->wait(*other.stored);
  const CopyPiece copy{to.memory.data(), host_rows_.data() + bytes_of(first_row), bytes_of(rows)};
  in_->copy_to_device({&copy, 1});
  in_->record(*to.loaded);
  stats_.to_device_bytes += copy.bytes;
  if (!options_.overlap) in_->synchronize();
  ++loaded_;
}

void ResidualStore::expect(int64_t first_row, int64_t rows) {
  if (!options_.overlap || on_device(first_row, rows) || expected_row_ >= 0) return;
  load(first_row, rows);
  expected_row_ = first_row;
}

Activations ResidualStore::take(int64_t first_row, int64_t rows, bool fresh, StallClock& stalls) {
  current_ = {on_device(first_row, rows), first_row, rows};
  if (current_.on_device) {
    return {DType::kF32, rows, options_.columns, options_.columns,
            device_rows_.data() + bytes_of(first_row)};
  }
  SPW_ASSERT(rows <= options_.micro_tokens);
  if (fresh) {
    SPW_ASSERT(expected_row_ < 0);
    device_.compute().wait(*slot(loaded_).stored);
    ++loaded_;
  } else {
    SPW_ASSERT(expected_row_ < 0 || expected_row_ == first_row);
    if (expected_row_ < 0) load(first_row, rows);
    expected_row_ = -1;
    stalls.time(StallCause::kActivations, [&] { device_.compute().wait(*slot(taken_).loaded); });
  }
  return {DType::kF32, rows, options_.columns, options_.columns, slot(taken_++).memory.data()};
}

void ResidualStore::put(StallClock& stalls) {
  if (current_.on_device) return;
  Slot& from = slot(taken_ - 1);
  device_.compute().record(*from.written);
  out_->wait(*from.written);
  const CopyPiece copy{host_rows_.data() + bytes_of(current_.first_row), from.memory.data(),
                       bytes_of(current_.rows)};
  out_->copy_to_host({&copy, 1});
  out_->record(*from.stored);
  stats_.to_host_bytes += copy.bytes;
  if (!options_.overlap) stalls.time(StallCause::kActivations, [&] { out_->synchronize(); });
}

void ResidualStore::reset() {
  device_.synchronize();
  if (in_ != nullptr) {
    in_->synchronize();
    out_->synchronize();
  }
  taken_ = loaded_;
  expected_row_ = -1;
}

}  // namespace spillway
