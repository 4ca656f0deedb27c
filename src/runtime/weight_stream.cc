// SPDX-License-Identifier: Apache-2.0
#include "runtime/weight_stream.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "memory/piece_loop.h"
#include "runtime/join_reads.h"

namespace spillway {
namespace {

constexpr size_t kMostCopiers = 8;

}  // namespace

struct WeightStream::Stage {
  PinnedBuffer memory;
  std::unique_ptr<DeviceEvent> copied;  // the copy out of memory is done
};

WeightStream::Schedule WeightStream::describe(StreamingSchedule schedule) {
  Schedule described;
  const std::vector<int> slot_groups = schedule.slot_groups();
  for (const StreamedLinear& linear : schedule.linears) {
    for (const OpRows& rows : linear.segments) {
      const size_t number = described.segments.size();
      Segment segment{.slot_group = slot_groups[number],
                      .last_of_slot_group = number + 1 == slot_groups.size() ||
                                            slot_groups[number + 1] != slot_groups[number]};
      if (number > 0 && slot_groups[number - 1] == slot_groups[number]) {
        const Segment& before = described.segments.back();
        segment.in_slot_group = before.in_slot_group + 1;
        segment.offset = before.parts.back().offset + before.parts.back().slot_bytes;
      }
      uint64_t offset = segment.offset;
      for (const MatrixRows& of : rows) {
        const StreamedWeight& weight =
            weights_.streamed_of(linear.layer, linear.spec_op, of.matrix);
        const auto skipped = static_cast<uint64_t>(of.first * weight.view.row_bytes());
        WeightView view = weight.view;
        view.sliced_from = of.count == view.rows ? 0 : view.rows;
        view.sliced_at = of.first;
        view.rows = of.count;
        Part part{.weight = &weight, .view = view, .offset = offset};
        if (weight.host != nullptr) {
          part.host = weight.host + skipped;
        } else {
          part.extents = weight.extents(of.first, of.count);
        }
        part.slot_bytes = streamed_weight_bytes(view.bytes(), part.extents);
        offset += part.slot_bytes;
        segment.parts.push_back(part);
      }
      slot_bytes_ = std::max(slot_bytes_, kStreamSlotBytes + offset);
      add_reads(described, segment);
      described.segments.push_back(std::move(segment));
    }
  }
  described.slot_groups = slot_groups.empty() ? 0 : slot_groups.back() + 1;
  described.schedule = std::move(schedule);
  return described;
}

// Lists the parts of a segment that are on disk, in pieces that each fit into a staging buffer.
void WeightStream::add_reads(Schedule& schedule, Segment& segment) {
  std::vector<CutExtent> extents;
  struct Begin {
    size_t part = 0;
    uint64_t offset = 0;  // in the part
  };
  std::vector<Begin> begins;  // one for each extent
  for (size_t i = 0; i < segment.parts.size(); ++i) {
    uint64_t offset = 0;
    for (const Extent& extent : segment.parts[i].extents) {
      extents.push_back({extent, kDirectAlignment});
      begins.push_back({i, offset});
      offset += extent.bytes;
    }
  }
  segment.first_read = schedule.reads.size();
  for (const Piece& cut : cut_extents(extents, kStreamReadBytes)) {
    const Begin& begin = begins[cut.index];
    schedule.reads.push_back({cut.in_file, begin.part, begin.offset + cut.offset});
  }
  segment.reads = schedule.reads.size() - segment.first_read;
}

WeightStream::WeightStream(TransferScheduler& transfers, Device& host, IoQueue& queue,
                           const WeightViews& weights, std::vector<StreamingSchedule> schedules,
                           const WeightStreamOptions& options)
    : transfers_(transfers), device_(transfers.device()), weights_(weights), options_(options) {
  Device& device = device_;
  SPW_ASSERT(options.slots >= 1 && options.stages >= 1 && !schedules.empty());
  for (StreamingSchedule& schedule : schedules) schedules_.push_back(describe(std::move(schedule)));
  bool from_disk = false, from_host = false, all_pinned = true;
  size_t largest_slot_group = 1;
  for (const Schedule& schedule : schedules_) {
    for (const Segment& segment : schedule.segments) {
      largest_slot_group = std::max(largest_slot_group, segment.in_slot_group + 1);
      for (const Part& part : segment.parts) {
        from_disk = from_disk || part.host == nullptr;
        from_host = from_host || part.host != nullptr;
        all_pinned = all_pinned && (part.host == nullptr || part.weight->pinned);
      }
    }
  }
  // If the device's memory is the host's, no weight lives in host memory instead.
  SPW_ASSERT(!device.host_visible() || !from_host);
  if (slot_bytes_ > 0) slots_.resize(static_cast<size_t>(options.slots));
  for (Slot& slot : slots_) {
    slot.memory = device.allocate(slot_bytes_, MemoryTag::kStaging);
    slot.base = device.host_visible() ? aligned_part(slot.memory.data(), slot.memory.bytes()).data()
                                      : slot.memory.data();
    slot.left = device.make_event();
    slot.arrivals.resize(largest_slot_group);
    for (Arrival& arrival : slot.arrivals) arrival.loaded = device.make_event();
  }
  stream_ = transfers.open_read_ahead(TransferUse::kWeights);
  if (from_disk) reader_ = std::make_unique<ExtentReader>(queue, weights.files);
  if (!device.host_visible()) {
    // Stages for copying and for reading ahead share options.stages.
    const int copying = all_pinned  ? 0
                        : from_disk ? std::clamp(options.stages / 2, 1, kStreamStages)
                                    : options.stages;
    for (int i = 0; i < copying; ++i) {
      stages_.push_back(std::make_unique<Stage>(
          Stage{PinnedBuffer(host, device, kStreamStageBytes, MemoryTag::kStaging),
                device.make_event()}));
    }
    if (from_disk) {
      ahead_ = std::make_unique<ReadAhead>(device, host, *reader_,
                                           std::max(1, options.stages - copying), options.overlap);
      restart_reading();
    }
  }
  if (options.overlap) asked_ = items_at_first();
  mover_ = std::thread([this] { work(); });
}

WeightStream::~WeightStream() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
    changed_.notify_all();
  }
  mover_.join();
  for (Slot& slot : slots_) {
    for (Arrival& arrival : slot.arrivals) arrival.read = {};
  }
  // Copies may still read staging memory, and ops may still read the slots.
  stream_.reset();
  device_.synchronize();
}

int WeightStream::number_of(int64_t item) const {
  return static_cast<int>((item - first_item_) % static_cast<int64_t>(current().segments.size()));
}
const WeightStream::Segment& WeightStream::segment_of(int64_t item) const {
  return current().segments[static_cast<size_t>(number_of(item))];
}
int64_t WeightStream::slot_group_of(int64_t item) const {
  const auto round = (item - first_item_) / static_cast<int64_t>(current().segments.size());
  return first_slot_group_ + round * current().slot_groups + segment_of(item).slot_group;
}
bool WeightStream::has_room(int64_t item) const {
  return slot_group_of(item) < left_ + static_cast<int64_t>(slots_.size());
}
// Returns the first item that the slots have no room for.
int64_t WeightStream::items_at_first() const {
  if (current().segments.empty()) return loaded_;
  int64_t item = loaded_;
  while (has_room(item)) ++item;
  return item;
}

void WeightStream::work() {
  device_.enter_thread();
  std::unique_lock lock(mutex_);
  while (true) {
    while (!closing_ && (failure_ || loaded_ >= asked_ || !has_room(loaded_))) read_on(lock);
    if (closing_) return;
    const int64_t item = loaded_, attempt = ++attempts_;
    loading_ = true;
    lock.unlock();
    std::exception_ptr failure;
    try {
      load(item);
    } catch (...) {
      failure = std::current_exception();
    }
    lock.lock();
    loading_ = false;
    if (failure) {
      failure_ = failure;
      failed_attempt_ = attempt;
    } else {
      ++loaded_;
    }
    changed_.notify_all();
  }
}

// Waits while there is nothing to load, and keeps the disk busy meanwhile.
void WeightStream::read_on(std::unique_lock<std::mutex>& lock) {
  if (ahead_ == nullptr || !ahead_->has_more_to_read()) return changed_.wait(lock);
  constexpr auto kLook = std::chrono::milliseconds(2);  // shorter than a few reads
  changed_.wait_for(lock, kLook);
  loading_ = true;
  lock.unlock();
  ahead_->go_on();
  lock.lock();
  loading_ = false;
  changed_.notify_all();
}

void WeightStream::restart_reading() {
  std::vector<Extent> extents;
  for (const Read& read : current().reads) extents.push_back(read.extent);
  ahead_->restart(std::move(extents));
}

void WeightStream::begin_step(size_t schedule) {
  SPW_ASSERT(schedule < schedules_.size());
  // A step that ended early left segments acquired. They are released, and as many others are
  // loaded, as if that step had gone on.
  const int64_t held = acquired_ - released_;
  while (released_ < acquired_) release(number_of(released_));
  std::unique_lock lock(mutex_);
  if (schedule == current_) {
    if (options_.overlap) asked_ += held;
    changed_.notify_all();
    return;
  }
  asked_ = loaded_;
  changed_.wait(lock, [&] { return !loading_; });
  failure_ = nullptr;
  for (Slot& slot : slots_) {
    for (Arrival& arrival : slot.arrivals) {
      arrival.reading = -1;
      arrival.read = {};
    }
  }
  // Slots with copies under way are filled again by the same queue, so after those copies.
  if (loaded_ > released_)
    first_slot_group_ = slot_group_of(loaded_ - 1) + 1;
  else
    first_slot_group_ = left_;
  left_ = first_slot_group_;
  acquired_ = released_ = first_item_ = loaded_;
  current_ = schedule;
  if (ahead_ != nullptr) restart_reading();
  asked_ = options_.overlap ? items_at_first() : loaded_;
  changed_.notify_all();
}

void WeightStream::load(int64_t item) {
  Slot& of = slot(item);
  Arrival& to = arrival(item);
  const auto begin = std::chrono::steady_clock::now();
  stream_->wait(*of.left);
  if (device_.host_visible()) {
    drawn(timeline_, *stream_, TimelineLane::kToGpu, "weights", -1, [&] { load_in_place(item); });
  } else {
    send_segment(item);
  }
  stream_->record(*to.loaded);
  if (options_.overlap) return;
  stream_->synchronize();
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  const std::lock_guard lock(mutex_);
  stats_.load_s += took.count();
}

// Copies a segment to a device with memory of its own.
void WeightStream::send_segment(int64_t item) {
  Arrival& to = arrival(item);
  std::vector<Move> not_pinned;
  to.views.clear();
  for (const Part& part : segment_of(item).parts) {
    std::byte* const at = slot(item).base + part.offset;
    to.views.push_back(part.view);
    to.views.back().data = at;
    const auto bytes = static_cast<size_t>(part.view.bytes());
    if (part.host == nullptr) continue;
    if (!part.weight->pinned) {
      not_pinned.push_back({&part, at});
    } else {
      const CopyPiece copy{at, part.host, bytes};
      stream_->copy_to_device({&copy, 1});
    }
  }
  if (!not_pinned.empty()) copy_through_stages(not_pinned);
  if (segment_of(item).reads > 0) send_read_bytes(item);
  if (ahead_ != nullptr) ahead_->go_on();
}

// Reads each part with the disk blocks around it, one after the other in the slot. A part that is
// one extent is not copied afterwards; parts in groups of rows are moved together when they are
// there.
void WeightStream::begin_reads(int64_t item) {
  Arrival& to = arrival(item);
  if (to.reading == item) return;
  to.reading = -1;
  to.read = {};  // waits for reads that a failure left under way
  const Segment& segment = segment_of(item);
  std::vector<Extent> extents;
  uint64_t bytes = 0;
  for (const Part& part : segment.parts) {
    extents.insert(extents.end(), part.extents.begin(), part.extents.end());
    bytes += part.slot_bytes;
  }
  to.read = reader_->begin(extents, {slot(item).base + segment.offset, bytes});
  to.reading = item;
}

// Starts the next segment's reads as soon as there is room for them, before this segment's reads
// have ended, so that the disk never runs out of work.
void WeightStream::load_in_place(int64_t item) {
  Arrival& to = arrival(item);
  const bool begun_ahead = to.reading == item;
  begin_reads(item);
  const auto may_begin = [&] { return item + 1 < asked_ && has_room(item + 1); };
  {
    // load_next() wakes this wait. The end of the reads is noticed late only if there is no room
    // for the next segment, which means that the compute is behind.
    constexpr auto kLook = std::chrono::microseconds(200);
    std::unique_lock lock(mutex_);
    while (options_.overlap && !closing_ && item < asked_ && !may_begin() && !to.read.is_done())
      changed_.wait_for(lock, kLook);
    const bool next = may_begin();
    lock.unlock();
    if (next) begin_reads(item + 1);
  }
  to.reading = -1;  // a failure from here on means reading it again
  try {
    to.read.wait();
  } catch (const Error&) {
    if (!begun_ahead) throw;  // else the failure is from reading ahead
    begin_reads(item);
    to.reading = -1;
    to.read.wait();
  }
  to.views.clear();
  for (size_t i = 0; const Part& part : segment_of(item).parts) {
    to.views.push_back(part.view);
    to.views.back().data = join_reads(to.read, i, part.extents.size(), slot(item).memory);
    i += part.extents.size();
  }
}

// Sends the parts of an item that are on disk, each piece as soon as it is read.
void WeightStream::send_read_bytes(int64_t item) {
  const Segment& segment = segment_of(item);
  const std::vector<Read>& reads = current().reads;
  const int64_t round = (item - first_item_) / static_cast<int64_t>(current().segments.size());
  const int64_t first =
      round * static_cast<int64_t>(reads.size()) + static_cast<int64_t>(segment.first_read);
  ahead_->seek(first, first + static_cast<int64_t>(segment.reads));
  for (size_t i = 0; i < segment.reads; ++i) {
    const Read& read = reads[segment.first_read + i];
    send(slot(item).base + segment.parts[read.part].offset + read.offset, ahead_->take());
    ahead_->sent(*stream_);
  }
}

// Copies from host memory that could not be pinned.
void WeightStream::copy_through_stages(std::span<const Move> moves) {
  std::vector<CutExtent> extents;
  for (const Move& move : moves)
    extents.push_back({{0, 0, static_cast<uint64_t>(move.part->view.bytes())}, kDirectAlignment});
  const std::vector<Piece> pieces = cut_extents(extents, kStreamReadBytes);
  // Each worker has a pair of stages: one is filled while the other is copied from.
  const size_t each = std::min<size_t>(2, stages_.size());
  const size_t workers = std::min({pieces.size(), stages_.size() / each, kMostCopiers});
  std::vector<size_t> turns(workers);
  for_each_piece(pieces, static_cast<int>(workers), {}, [&](const Piece& piece, int worker) {
    const auto mine = static_cast<size_t>(worker);
    Stage& stage = *stages_[mine * each + turns[mine]++ % each];
    stage.copied->synchronize();
    const Move& move = moves[piece.index];
    const std::span<std::byte> memory(stage.memory.data(), piece.in_file.bytes);
    std::memcpy(memory.data(), move.part->host + piece.offset, memory.size());
    const std::lock_guard lock(stream_mutex_);
    device_.enter_thread();
    send(move.to + piece.offset, memory);
    stream_->record(*stage.copied);
  });
}

void WeightStream::send(std::byte* to, std::span<const std::byte> bytes) {
  const CopyPiece copy{to, bytes.data(), bytes.size()};
  stream_->copy_to_device({&copy, 1});
}

// Waits until the next item's loading has been queued. Throws the failure of an attempt that began
// after the call; the cause of an earlier failure may be gone.
void WeightStream::wait_until_loaded() {
  std::unique_lock lock(mutex_);
  asked_ = options_.overlap ? std::max(asked_, acquired_ + 1) : acquired_ + 1;
  const int64_t before = attempts_;
  stream_->set_urgent(loaded_ <= acquired_);  // its copies are awaited now
  while (loaded_ <= acquired_) {
    const std::exception_ptr failure = std::exchange(failure_, nullptr);
    changed_.notify_all();  // the mover continues or tries again
    if (failure && failed_attempt_ > before) {
      stream_->set_urgent(false);
      std::rethrow_exception(failure);
    }
    changed_.wait(lock, [&] { return failure_ || loaded_ > acquired_; });
  }
  stream_->set_urgent(false);
}

// Counts the next item as acquired, and its bytes as moved.
void WeightStream::hand_out() {
  const std::lock_guard lock(mutex_);
  for (const Part& part : segment_of(acquired_).parts) {
    (part.host != nullptr ? stats_.host_bytes : stats_.disk_bytes) +=
        static_cast<uint64_t>(part.view.bytes());
  }
  ++acquired_;
}

// Waits for the next item and releases it unused, after a step that ended early.
void WeightStream::skip_item() {
  wait_until_loaded();
  // The slot must not be filled again before this load has ended.
  arrival(acquired_).loaded->synchronize();
  hand_out();
  release(number_of(acquired_ - 1));
  if (options_.overlap) load_next();  // as the step would have done
}

void WeightStream::load_next() {
  if (!options_.overlap) return;  // acquire() allows the load right after this
  const std::lock_guard lock(mutex_);
  ++asked_;
  changed_.notify_all();
}

std::span<const WeightView> WeightStream::acquire(int segment, StallClock& stalls) {
  while (number_of(acquired_) != segment) skip_item();
  stalls.time(StallCause::kWeights, [&] {
    wait_until_loaded();
    device_.compute().wait(*arrival(acquired_).loaded);
  });
  const std::span<const WeightView> views = arrival(acquired_).views;
  hand_out();
  return views;
}

void WeightStream::release(int segment) {
  SPW_ASSERT(released_ < acquired_ && number_of(released_) == segment);
  const bool last = segment_of(released_).last_of_slot_group;
  if (last) device_.compute().record(*slot(released_).left);
  const std::lock_guard lock(mutex_);
  ++released_;
  if (last) ++left_;
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

void WeightStream::record(Timeline* timeline) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return !loading_; });
  timeline_ = timeline;
  transfers_.observe(timeline);
}

int64_t WeightStream::segments_loaded() const {
  const std::lock_guard lock(mutex_);
  return loaded_;
}

}  // namespace spillway
