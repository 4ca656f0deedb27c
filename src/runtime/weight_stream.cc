// SPDX-License-Identifier: Apache-2.0
#include "runtime/weight_stream.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <optional>
#include <utility>

#include "base/error.h"
#include "memory/piece_loop.h"

namespace spillway {
namespace {

// Copies of this size reach the bus's full speed, and others find their turn between them.
constexpr size_t kCopyBytes = size_t{32} << 20;
constexpr size_t kMostCopiers = 8;

// What streamed weights of a layer take in device memory.
uint64_t streamed_bytes(std::span<const StreamedWeight> weights) {
  uint64_t bytes = kStreamSlotBytes;
  for (const StreamedWeight& weight : weights) {
    bytes += streamed_weight_bytes(
        weight.view.bytes(), weight.host != nullptr ? std::nullopt : std::optional(weight.extent));
  }
  return bytes;
}

// Layers, and pieces of the head.
int item_count(const WeightViews& weights) {
  return static_cast<int>(weights.streamed.size() + weights.head_pieces.size());
}

}  // namespace

struct WeightStream::Stage {
  PinnedBuffer memory;
  std::unique_ptr<DeviceEvent> copied;  // out of it
  ExtentBatch read = {};                // into it; last: it waits before the memory goes

  std::span<std::byte> aligned() const { return aligned_part(memory.data(), memory.bytes()); }
};

uint64_t WeightStream::slot_bytes(const WeightViews& weights) {
  uint64_t largest = 0;
  for (int layer = 0; layer < item_count(weights); ++layer)
    largest = std::max(largest, streamed_bytes(weights.streamed_at(layer)));
  return largest;
}

WeightStream::WeightStream(Device& device, Device& host, IoQueue& queue, const WeightViews& weights,
                           const WeightStreamOptions& options)
    : device_(device), weights_(weights), options_(options) {
  SPW_ASSERT(options.slots >= 1 && options.stages >= 1);
  bool from_disk = false, from_host = false, all_pinned = true;
  for (int layer = 0; layer < item_count(weights); ++layer) {
    if (!streams(layer)) continue;
    layers_.push_back(layer);
    for (const StreamedWeight& weight : weights.streamed_at(layer)) {
      from_disk = from_disk || weight.host == nullptr;
      from_host = from_host || weight.host != nullptr;
      all_pinned = all_pinned && (weight.host == nullptr || weight.pinned);
    }
  }
  SPW_ASSERT(!layers_.empty());
  // Where the host's memory is the device's, nothing lives in the host's instead.
  SPW_ASSERT(!device.host_visible() || !from_host);
  const uint64_t bytes = slot_bytes(weights);
  slots_.resize(
      static_cast<size_t>(stream_slot_count(options.slots, static_cast<int>(layers_.size()))));
  for (Slot& slot : slots_) {
    slot.memory = device.allocate(bytes, MemoryTag::kStaging);
    slot.loaded = device.make_event();
    slot.left = device.make_event();
  }
  stream_ = device.make_stream();
  if (from_disk) reader_ = std::make_unique<ExtentReader>(queue, weights.files);
  const bool through_stages = !device.host_visible() && (from_disk || !all_pinned);
  for (int i = 0; through_stages && i < options.stages; ++i) {
    stages_.push_back(std::make_unique<Stage>(Stage{
        PinnedBuffer(host, device, kStreamStageBytes, MemoryTag::kStaging), device.make_event()}));
  }
  if (options.overlap) asked_ = slots();
  mover_ = std::thread([this] { work(); });
}

WeightStream::~WeightStream() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
    changed_.notify_all();
  }
  mover_.join();
  for (Slot& slot : slots_) slot.read = {};
  // Copies may still read staging memory, and ops the slots.
  stream_.reset();
  device_.synchronize();
}

void WeightStream::work() {
  device_.enter_thread();
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] {
      return closing_ || (!failure_ && loaded_ < asked_ &&
                          loaded_ < released_ + static_cast<int64_t>(slots_.size()));
    });
    if (closing_) return;
    const int64_t item = loaded_, attempt = ++attempts_;
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
      failed_attempt_ = attempt;
    } else {
      ++loaded_;
    }
    changed_.notify_all();
  }
}

void WeightStream::load(int64_t item) {
  Slot& to = slot(item);
  const int layer = layer_of(item);
  const auto number = static_cast<size_t>(layer);
  to.views = number < weights_.layers.size() ? weights_.layers[number] : LayerWeights();
  const auto begin = std::chrono::steady_clock::now();
  stream_->wait(*to.left);
  if (device_.host_visible()) {
    load_in_place(item);
  } else {
    send_layer(layer, to);
  }
  stream_->record(*to.loaded);
  if (options_.overlap) return;
  stream_->synchronize();
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  const std::lock_guard lock(mutex_);
  stats_.load_s += took.count();
}

// To a device with memory of its own.
void WeightStream::send_layer(int layer, Slot& slot) {
  std::vector<CopyPiece> copies;
  std::vector<Move> on_disk, not_pinned;
  std::byte* at = slot.memory.data();
  for (const StreamedWeight& weight : weights_.streamed_at(layer)) {
    WeightView& view = weight_of(slot.views, weight.role);
    view = weight.view;
    view.data = at;
    const auto bytes = static_cast<size_t>(view.bytes());
    if (weight.host == nullptr) {
      on_disk.push_back({&weight, at});
    } else if (!weight.pinned) {
      not_pinned.push_back({&weight, at});
    } else {
      for (size_t done = 0; done < bytes; done += kCopyBytes)
        copies.push_back({at + done, weight.host + done, std::min(kCopyBytes, bytes - done)});
    }
    at += aligned_weight_bytes(weight.view.bytes());
  }
  // Rows of several matrices that lie side by side on both ends are one copy each all the same: the
  // pieces are large.
  for (const CopyPiece& copy : copies) stream_->copy_to_device({&copy, 1});
  if (!not_pinned.empty()) copy_through_stages(not_pinned);
  if (!on_disk.empty()) read_through_stages(on_disk);
}

// Each weight with the blocks around it, one behind the other in the slot: no byte is copied.
void WeightStream::begin_reads(int64_t item) {
  Slot& to = slot(item);
  if (to.reading == item) return;
  to.reading = -1;
  to.read = {};  // waits for what a failure left on its way
  std::vector<Extent> extents;
  for (const StreamedWeight& weight : weights_.streamed_at(layer_of(item)))
    extents.push_back(weight.extent);
  to.read = reader_->begin(extents, aligned_part(to.memory.data(), to.memory.bytes()));
  to.reading = item;
}

// The disk has the next layer's reads as soon as there is room for them, before this one's have
// ended: it never runs out of work.
void WeightStream::load_in_place(int64_t item) {
  Slot& to = slot(item);
  const bool begun_ahead = to.reading == item;
  begin_reads(item);
  const auto has_room = [&] {
    return item + 1 < asked_ && item + 1 < released_ + static_cast<int64_t>(slots_.size());
  };
  {
    // load_next() wakes it. That the reads have ended is seen late only while there is no room,
    // which is when the compute is behind.
    constexpr auto kLook = std::chrono::microseconds(200);
    std::unique_lock lock(mutex_);
    while (options_.overlap && !closing_ && !has_room() && !to.read.is_done())
      changed_.wait_for(lock, kLook);
    const bool next = has_room();
    lock.unlock();
    if (next) begin_reads(item + 1);
  }
  to.reading = -1;  // from here on a failure means reading it again
  try {
    to.read.wait();
  } catch (const Error&) {
    if (!begun_ahead) throw;  // else it is a failure of some time ago
    begin_reads(item);
    to.reading = -1;
    to.read.wait();
  }
  size_t i = 0;
  for (const StreamedWeight& weight : weights_.streamed_at(layer_of(item))) {
    WeightView& view = weight_of(to.views, weight.role);
    view = weight.view;
    view.data = to.read.bytes(i++).data();
  }
}

// As many pieces on their way from the disk as there are stages, each sent on as it comes.
void WeightStream::read_through_stages(std::span<const Move> moves) {
  std::vector<CutExtent> extents;
  for (const Move& move : moves) extents.push_back({move.weight->extent, kDirectAlignment});
  const std::vector<Piece> pieces = cut_extents(extents, kStreamReadBytes);
  const size_t stages = stages_.size();
  size_t begun = 0;
  for (size_t i = 0; i < pieces.size(); ++i) {
    for (; begun < std::min(pieces.size(), i + stages); ++begun) {
      Stage& next = *stages_[begun % stages];
      next.copied->synchronize();
      next.read = {};  // one that a failure left on its way
      next.read = reader_->begin({&pieces[begun].in_file, 1}, next.aligned());
    }
    Stage& stage = *stages_[i % stages];
    stage.read.wait();
    send(stage, moves[pieces[i].index].to + pieces[i].offset, stage.read.bytes(0));
  }
}

// From host memory that could not be pinned.
void WeightStream::copy_through_stages(std::span<const Move> moves) {
  std::vector<CutExtent> extents;
  for (const Move& move : moves)
    extents.push_back({{0, 0, static_cast<uint64_t>(move.weight->view.bytes())}, kDirectAlignment});
  const std::vector<Piece> pieces = cut_extents(extents, kStreamReadBytes);
  // Each worker has a pair of stages: one is filled while the other is copied from.
  const size_t each = std::min<size_t>(2, stages_.size());
  const size_t workers = std::min({pieces.size(), stages_.size() / each, kMostCopiers});
  std::vector<size_t> turns(workers);
  for_each_piece(pieces, static_cast<int>(workers), {}, [&](const Piece& piece, int worker) {
    const auto mine = static_cast<size_t>(worker);
    Stage& stage = *stages_[mine * each + turns[mine]++ % each];
    stage.read = {};
    stage.copied->synchronize();
    const Move& move = moves[piece.index];
    const std::span<std::byte> memory = stage.aligned().first(piece.in_file.bytes);
    std::memcpy(memory.data(), move.weight->host + piece.offset, memory.size());
    const std::lock_guard lock(stream_mutex_);
    device_.enter_thread();
    send(stage, move.to + piece.offset, memory);
  });
}

void WeightStream::send(Stage& stage, std::byte* to, std::span<const std::byte> bytes) {
  const CopyPiece copy{to, bytes.data(), bytes.size()};
  stream_->copy_to_device({&copy, 1});
  stream_->record(*stage.copied);
}

// Until the next item's loading is queued. Throws the failure of an attempt that began after the
// call: what went wrong before that may be well by now.
void WeightStream::wait_until_loaded() {
  std::unique_lock lock(mutex_);
  asked_ = options_.overlap ? std::max(asked_, acquired_ + 1) : acquired_ + 1;
  const int64_t before = attempts_;
  while (loaded_ <= acquired_) {
    const std::exception_ptr failure = std::exchange(failure_, nullptr);
    changed_.notify_all();  // the mover goes on, or tries again
    if (failure && failed_attempt_ > before) std::rethrow_exception(failure);
    changed_.wait(lock, [&] { return failure_ || loaded_ > acquired_; });
  }
}

// Counts the item that is next as taken, and its bytes as moved.
void WeightStream::hand_out() {
  const std::lock_guard lock(mutex_);
  for (const StreamedWeight& weight : weights_.streamed_at(layer_of(acquired_))) {
    (weight.host != nullptr ? stats_.host_bytes : stats_.disk_bytes) +=
        static_cast<uint64_t>(weight.view.bytes());
  }
  ++acquired_;
}

// Of the item that is next: waits for it and gives it back unused. After a step that ended early.
void WeightStream::skip_item() {
  wait_until_loaded();
  // The slot must not be filled again before this load has ended.
  slot(acquired_).loaded->synchronize();
  hand_out();
  const std::lock_guard lock(mutex_);
  ++released_;
  if (options_.overlap) ++asked_;  // as whoever would have used it
  changed_.notify_all();
}

void WeightStream::load_next() {
  if (!options_.overlap) return;  // acquire() asks, right behind this
  const std::lock_guard lock(mutex_);
  ++asked_;
  changed_.notify_all();
}

const LayerWeights& WeightStream::acquire(int layer, StallClock& stalls) {
  if (!streams(layer)) return weights_.layers[static_cast<size_t>(layer)];
  if (released_ < acquired_) {  // the step before ended between acquire() and release()
    release(layer_of(acquired_ - 1));
    if (options_.overlap) load_next();
  }
  while (layer_of(acquired_) != layer) skip_item();
  stalls.time(StallCause::kWeights, [&] {
    wait_until_loaded();
    device_.compute().wait(*slot(acquired_).loaded);
  });
  const LayerWeights& views = slot(acquired_).views;
  hand_out();
  return views;
}

void WeightStream::release(int layer) {
  if (!streams(layer)) return;
  SPW_ASSERT(released_ + 1 == acquired_ && layer_of(released_) == layer);
  device_.compute().record(*slot(released_).left);
  const std::lock_guard lock(mutex_);
  ++released_;
  changed_.notify_all();
}

WeightStream::Stats& WeightStream::Stats::operator+=(const Stats& other) {
  host_bytes += other.host_bytes;
  disk_bytes += other.disk_bytes;
  load_s += other.load_s;
  return *this;
}

WeightStream::Stats WeightStream::take_stats() {
  const std::lock_guard lock(mutex_);
  return std::exchange(stats_, {});
}

int64_t WeightStream::layers_brought() const {
  const std::lock_guard lock(mutex_);
  return loaded_;
}

}  // namespace spillway
