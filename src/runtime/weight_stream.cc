// SPDX-License-Identifier: Apache-2.0
#include "runtime/weight_stream.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "memory/piece_loop.h"

namespace spillway {
namespace {

// Copies of this size reach the bus's full speed, and others find their turn between them.
constexpr size_t kCopyBytes = size_t{32} << 20;
constexpr uint64_t kReadBytes = uint64_t{2} << 20;

uint64_t layer_bytes(std::span<const StreamedWeight> weights) {
  uint64_t bytes = 0;
  for (const StreamedWeight& weight : weights) bytes += aligned_weight_bytes(weight.view.bytes());
  return bytes;
}

}  // namespace

// Two buffers in turn: one is read into while the other is copied from.
struct WeightStream::Staging {
  PinnedBuffer memory[2];
  std::unique_ptr<DeviceEvent> copied[2];
  int turn = 0;

  // As direct reads want it.
  static constexpr size_t kBytes = (kReadBytes / kDirectAlignment + 2) * kDirectAlignment;
  std::span<std::byte> aligned(int i) const {
    const auto address = reinterpret_cast<uintptr_t>(memory[i].data());
    const size_t skip = (kDirectAlignment - address % kDirectAlignment) % kDirectAlignment;
    return {memory[i].data() + skip, kBytes};
  }
};

uint64_t WeightStream::slot_bytes(const ModelWeights& weights) {
  uint64_t largest = 0;
  for (const auto& layer : weights.streamed) largest = std::max(largest, layer_bytes(layer));
  return largest;
}

WeightStream::WeightStream(Device& device, Device& host, const ModelWeights& weights,
                           const WeightStreamOptions& options)
    : device_(device), weights_(weights), options_(options) {
  SPW_ASSERT(options.slots >= 1 && options.readers >= 1);
  bool from_disk = false, through_staging = false;
  for (size_t layer = 0; layer < weights.streamed.size(); ++layer) {
    if (weights.streamed[layer].empty()) continue;
    layers_.push_back(static_cast<int>(layer));
    for (const StreamedWeight& weight : weights.streamed[layer]) {
      from_disk = from_disk || weight.host == nullptr;
      through_staging = through_staging || weight.host == nullptr || !weights.host_is_pinned();
    }
  }
  SPW_ASSERT(!layers_.empty());
  const uint64_t bytes = slot_bytes(weights);
  slots_.resize(std::min(static_cast<size_t>(options.slots), layers_.size() + 1));
  for (Slot& slot : slots_) {
    slot.memory = device.allocate(bytes, MemoryTag::kStaging);
    slot.loaded = device.make_event();
    slot.left = device.make_event();
  }
  stream_ = device.make_stream();
  if (from_disk) reader_ = std::make_unique<DirectReader>(weights.files);
  if (through_staging) {
    for (int i = 0; i < options.readers; ++i) {
      staging_.push_back(std::make_unique<Staging>());
      for (int turn = 0; turn < 2; ++turn) {
        staging_.back()->memory[turn] =
            PinnedBuffer(host, device, DirectReader::buffer_bytes(kReadBytes), MemoryTag::kStaging);
        staging_.back()->copied[turn] = device.make_event();
      }
    }
  }
  mover_ = std::thread([this] { work(); });
}

WeightStream::~WeightStream() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
    changed_.notify_all();
  }
  mover_.join();
  // Copies may still read staging memory, and ops the slots.
  stream_.reset();
  device_.synchronize();
}

void WeightStream::work() {
  device_.enter_thread();
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] {
      const bool may_load = options_.overlap || loaded_ < asked_;
      return closing_ ||
             (!failure_ && may_load && loaded_ < released_ + static_cast<int64_t>(slots_.size()));
    });
    if (closing_) return;
    const int64_t item = loaded_;
    lock.unlock();
    std::exception_ptr failure;
    try {
      load(item);
    } catch (...) {
      failure = std::current_exception();
    }
    lock.lock();
    if (failure) {
      failure_ = failure;
    } else {
      ++loaded_;
    }
    changed_.notify_all();
  }
}

void WeightStream::load(int64_t item) {
  Slot& to = slot(item);
  const auto layer = static_cast<size_t>(layer_of(item));
  to.views = weights_.layers[layer];
  std::vector<CopyPiece> copies;
  std::vector<const StreamedWeight*> staged;
  std::vector<std::byte*> staged_to;
  std::byte* at = to.memory.data();
  Stats moved;
  for (const StreamedWeight& weight : weights_.streamed[layer]) {
    WeightView& view = weight_of(to.views, weight.role);
    view = weight.view;
    view.data = at;
    const auto bytes = static_cast<size_t>(view.bytes());
    if (weight.host != nullptr && weights_.host_is_pinned()) {
      for (size_t done = 0; done < bytes; done += kCopyBytes)
        copies.push_back({at + done, weight.host + done, std::min(kCopyBytes, bytes - done)});
    } else {
      staged.push_back(&weight);
      staged_to.push_back(at);
    }
    (weight.host != nullptr ? moved.host_bytes : moved.disk_bytes) += bytes;
    at += aligned_weight_bytes(weight.view.bytes());
  }
  const auto begin = std::chrono::steady_clock::now();
  stream_->wait(*to.left);
  // Rows of several matrices that lie side by side on both ends are one copy each all the same: the
  // pieces are large.
  for (const CopyPiece& copy : copies) stream_->copy_to_device({&copy, 1});
  if (!staged.empty()) load_from_disk(staged, staged_to);
  stream_->record(*to.loaded);
  if (!options_.overlap) {
    stream_->synchronize();
    moved.load_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }
  const std::lock_guard lock(mutex_);
  stats_.host_bytes += moved.host_bytes;
  stats_.disk_bytes += moved.disk_bytes;
  stats_.load_s += moved.load_s;
}

// Also from host memory that is not pinned: everything that goes through staging buffers.
void WeightStream::load_from_disk(std::span<const StreamedWeight* const> from,
                                  std::span<std::byte* const> to) {
  std::vector<CutExtent> extents;
  for (const StreamedWeight* weight : from) {
    const Extent whole = weight->host != nullptr
                             ? Extent{0, 0, static_cast<uint64_t>(weight->view.bytes())}
                             : weight->extent;
    extents.push_back({whole, kDirectAlignment});
  }
  const std::vector<Piece> pieces = cut_extents(extents, kReadBytes);
  const int workers = static_cast<int>(std::min(pieces.size(), staging_.size()));
  for_each_piece(pieces, workers, {}, [&](const Piece& piece, int worker) {
    Staging& mine = *staging_[static_cast<size_t>(worker)];
    const int turn = std::exchange(mine.turn, 1 - mine.turn);
    mine.copied[turn]->synchronize();
    const std::span<std::byte> memory = mine.aligned(turn);
    const StreamedWeight& weight = *from[piece.index];
    const std::byte* read = nullptr;
    const size_t bytes = piece.in_file.bytes;
    if (weight.host != nullptr) {
      std::memcpy(memory.data(), weight.host + piece.offset, bytes);
      read = memory.data();
    } else {
      read = reader_->read(piece.in_file, memory).data();
    }
    const CopyPiece copy{to[piece.index] + piece.offset, read, bytes};
    if (device_.host_visible()) {
      std::memcpy(copy.to, copy.from, copy.bytes);
      return;
    }
    const std::lock_guard lock(stream_mutex_);
    stream_->copy_to_device({&copy, 1});
    stream_->record(*mine.copied[turn]);
  });
}

// Of the item that is next: waits for it and gives it back unused. After a step that ended early.
void WeightStream::skip_item() {
  std::unique_lock lock(mutex_);
  asked_ = acquired_ + 1;
  changed_.notify_all();
  changed_.wait(lock, [&] { return failure_ || loaded_ > acquired_; });
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
  // The slot must not be filled again before this load has ended.
  Slot& unused = slot(acquired_);
  lock.unlock();
  unused.loaded->synchronize();
  lock.lock();
  ++acquired_;
  ++released_;
  changed_.notify_all();
}

const LayerWeights& WeightStream::acquire(int layer, StallClock& stalls) {
  if (!streams(layer)) return weights_.layers[static_cast<size_t>(layer)];
  if (released_ < acquired_) {  // the step before ended between acquire() and release()
    release(layer_of(acquired_ - 1));
  }
  while (layer_of(acquired_) != layer) skip_item();
  stalls.time(StallCause::kWeights, [&] {
    {
      std::unique_lock lock(mutex_);
      asked_ = acquired_ + 1;
      changed_.notify_all();
      changed_.wait(lock, [&] { return failure_ || loaded_ > acquired_; });
      if (loaded_ <= acquired_) {
        // The mover tries again once the failure is taken.
        const std::exception_ptr failure = std::exchange(failure_, nullptr);
        changed_.notify_all();
        std::rethrow_exception(failure);
      }
    }
    device_.compute().wait(*slot(acquired_).loaded);
  });
  return slot(acquired_++).views;
}

void WeightStream::release(int layer) {
  if (!streams(layer)) return;
  SPW_ASSERT(released_ + 1 == acquired_ && layer_of(released_) == layer);
  device_.compute().record(*slot(released_).left);
  const std::lock_guard lock(mutex_);
  ++released_;
  changed_.notify_all();
}

WeightStream::Stats WeightStream::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

}  // namespace spillway
