// SPDX-License-Identifier: Apache-2.0
#include "memory/transfer_scheduler.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <utility>

#include "base/error.h"

namespace spillway {
namespace {

// While no awaited copy is unfinished, another piece of copies out is issued only if fewer bytes
// than these are in flight. An awaited copy that comes next waits about a millisecond for them.
constexpr size_t kBytesOutInFlight = size_t{64} << 20;

double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

size_t bytes_of(std::span<const CopyPiece> pieces) {
  size_t bytes = 0;
  for (const CopyPiece& piece : pieces) bytes += piece.bytes;
  return bytes;
}

size_t index(TransferUse use) { return static_cast<size_t>(use); }
size_t index(LinkDirection direction) { return static_cast<size_t>(direction); }

}  // namespace

const char* transfer_use_name(TransferUse use) {
  constexpr const char* kNames[kTransferUses] = {"weights",       "swapped_kv", "layer_kv",
                                                 "hidden_states", "attention",  "stored_kv"};
  return kNames[index(use)];
}

const char* link_direction_name(LinkDirection direction) {
  return direction == LinkDirection::kToDevice ? "to_device" : "to_host";
}

// A copy, or several of one call.
struct TransferScheduler::Track {
  std::unique_ptr<DeviceEvent> started, done;
  size_t bytes = 0;
};

TransferScheduler::Line::Line(TransferScheduler& of, TransferUse for_use, LinkDirection way,
                              bool is_awaited)
    : transfers(of),
      use(for_use),
      direction(way),
      awaited(is_awaited),
      queue(of.device().make_stream()) {
  if (awaited) ++transfers.awaited_lines_[index(direction)];
  const std::lock_guard lock(transfers.mutex_);
  transfers.lines_.push_back(this);
}

TransferScheduler::Line::~Line() {
  if (awaited) --transfers.awaited_lines_[index(direction)];
  const std::lock_guard lock(transfers.mutex_);
  std::erase(transfers.lines_, this);
}

class AwaitedStream final : public LineStream {
 public:
  AwaitedStream(TransferScheduler& transfers, TransferUse use, LinkDirection direction)
      : LineStream(transfers, use, direction, /*awaited=*/true) {}

  void copy_to_device(std::span<const CopyPiece> pieces) override {
    SPW_ASSERT(line_.direction == LinkDirection::kToDevice);
    copy(pieces, [&] { line_.queue->copy_to_device(pieces); });
  }
  void copy_to_host(std::span<const CopyPiece> pieces) override {
    SPW_ASSERT(line_.direction == LinkDirection::kToHost);
    copy(pieces, [&] { line_.queue->copy_to_host(pieces); });
  }

 private:
  void copy(std::span<const CopyPiece> pieces, const std::function<void()>& work) {
    line_.transfers.issue(line_, bytes_of(pieces), work);
    line_.transfers.issue_copies_out();
  }
};

TransferScheduler::~TransferScheduler() = default;

std::unique_ptr<DeviceStream> TransferScheduler::open_awaited(TransferUse use,
                                                              LinkDirection direction) {
  return std::make_unique<AwaitedStream>(*this, use, direction);
}

std::unique_ptr<ReadAheadStream> TransferScheduler::open_read_ahead(TransferUse use) {
  return std::make_unique<ReadAheadStream>(*this, use);
}

std::unique_ptr<CopyOutQueue> TransferScheduler::open_copies_out(TransferUse use) {
  return std::make_unique<CopyOutQueue>(*this, use);
}

void TransferScheduler::issue_copies_out(bool all) {
  for (CopyOutQueue* const queue : copies_out_) queue->issue(all);
}

std::shared_ptr<TransferScheduler::Track> TransferScheduler::make_track() {
  {
    const std::lock_guard lock(mutex_);
    // A track that a thread still looks at is not used again.
    const auto found = std::ranges::find_if(
        unused_, [](const std::shared_ptr<Track>& track) { return track.use_count() == 1; });
    if (found != unused_.end()) {
      std::shared_ptr<Track> track = std::move(*found);
      unused_.erase(found);
      return track;
    }
  }
  auto track = std::make_shared<Track>();
  track->started = device_.make_event(/*timed=*/true);
  track->done = device_.make_event(/*timed=*/true);
  return track;
}

std::shared_ptr<TransferScheduler::Track> TransferScheduler::issue(
    Line& line, size_t bytes, const std::function<void()>& copy) {
  std::shared_ptr<Track> track;
  if (bytes >= kTrackedBytes) {
    track = make_track();
    track->bytes = bytes;
    line.queue->record(*track->started);
  }
  try {
    copy();
    if (track != nullptr) line.queue->record(*track->done);
  } catch (...) {
    // The queue may still reach the event of its start.
    const std::lock_guard lock(mutex_);
    if (track != nullptr) unused_.push_back(std::move(track));
    throw;
  }
  const std::lock_guard lock(mutex_);
  TransferStats& stats = stats_[index(line.use)][index(line.direction)];
  stats.bytes += bytes;
  if (bytes > 0) ++stats.copies;
  if (track == nullptr) return nullptr;
  settle_locked(line);
  line.tracks.push_back(track);
  return track;
}

std::shared_ptr<TransferScheduler::Track> TransferScheduler::issue_observed(
    Line& line, size_t bytes, const std::function<void()>& copy) {
  TransferObserver* const observer = observer_;
  if (observer == nullptr) return issue(line, bytes, copy);
  const size_t begun = observer->begin_copy(*line.queue);
  auto track = issue(line, bytes, copy);
  observer->end_copy(*line.queue, begun, line.use, line.direction);
  return track;
}

// Takes the times of copies that are done.
void TransferScheduler::settle_locked(Line& line) {
  while (!line.tracks.empty() && line.tracks.front()->done->is_reached()) {
    std::shared_ptr<Track> track = std::move(line.tracks.front());
    line.tracks.pop_front();
    try {
      stats_[index(line.use)][index(line.direction)].busy_s +=
          track->done->seconds_after(*track->started);
    } catch (const Error&) {
      // The device has failed, which ops report.
    }
    unused_.push_back(std::move(track));
  }
}

std::shared_ptr<TransferScheduler::Track> TransferScheduler::running(LinkDirection direction) {
  const std::lock_guard lock(mutex_);
  for (Line* const line : lines_) {
    if (!line->awaited || line->direction != direction) continue;
    settle_locked(*line);
    // A queue does its copies in order, so the first that is not done is the one that may run.
    if (!line->tracks.empty() && line->tracks.front()->started->is_reached())
      return line->tracks.front();
  }
  return nullptr;
}

bool TransferScheduler::has_unfinished(LinkDirection direction) {
  const std::lock_guard lock(mutex_);
  for (Line* const line : lines_) {
    if (!line->awaited || line->direction != direction) continue;
    settle_locked(*line);
    if (!line->tracks.empty()) return true;
  }
  return false;
}

void TransferScheduler::add_held(const Line& line, double seconds) {
  const std::lock_guard lock(mutex_);
  stats_[index(line.use)][index(line.direction)].held_s += seconds;
}

TransferTable TransferScheduler::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

void ReadAheadStream::copy_to_host(std::span<const CopyPiece> /*pieces*/) {
  SPW_ASSERT(false);  // what is read ahead goes to the device
}

void ReadAheadStream::copy_to_device(std::span<const CopyPiece> pieces) {
  for (const CopyPiece& piece : pieces) {
    for (size_t done = 0; done < piece.bytes; done += TransferScheduler::kPieceBytes) {
      const size_t bytes = std::min(TransferScheduler::kPieceBytes, piece.bytes - done);
      if (line_.transfers.has_awaited(line_.direction)) hold_back();
      send({piece.to + done, piece.from + done, bytes});
    }
  }
}

// Waits until the next piece may be issued: few are in flight, and no awaited copy is running.
void ReadAheadStream::hold_back() {
  while (!in_flight_.empty() && in_flight_.front()->done->is_reached()) in_flight_.pop_front();
  while (in_flight_.size() >= TransferScheduler::kPiecesInFlight) {
    in_flight_.front()->done->synchronize();
    in_flight_.pop_front();
  }
  double begun_s = 0;
  while (!urgent_) {
    const auto awaited = line_.transfers.running(line_.direction);
    if (awaited == nullptr) break;
    if (begun_s == 0) begun_s = now_s();
    awaited->done->synchronize();
  }
  if (begun_s > 0) line_.transfers.add_held(line_, now_s() - begun_s);
}

void ReadAheadStream::send(const CopyPiece& piece) {
  auto track = line_.transfers.issue_observed(line_, piece.bytes, [&] {
    line_.queue->copy_to_device({&piece, 1});
  });
  if (track != nullptr && line_.transfers.has_awaited(line_.direction))
    in_flight_.push_back(std::move(track));
}

CopyOutQueue::CopyOutQueue(TransferScheduler& transfers, TransferUse use)
    : line_(transfers, use, LinkDirection::kToHost, /*is_awaited=*/false),
      issued_(transfers.device().make_event()) {
  transfers.copies_out_.push_back(this);
}

CopyOutQueue::~CopyOutQueue() {
  synchronize();
  std::erase(line_.transfers.copies_out_, this);
}

void CopyOutQueue::add(std::vector<CopyPiece> pieces, Done done) {
  Batch batch{
      .computed = {}, .pieces = std::move(pieces), .done = std::move(done), .added_s = now_s()};
  try {
    batch.computed = line_.transfers.device().make_event();
    line_.transfers.device().compute().record(*batch.computed);
  } catch (const Error&) {
    return end_failed(std::move(batch));
  }
  batches_.push_back(std::move(batch));
  issue(/*all=*/!line_.transfers.has_awaited(line_.direction));
}

void CopyOutQueue::make_wait(DeviceStream& queue) {
  issue(/*all=*/true);
  queue.wait(*issued_);
}

void CopyOutQueue::synchronize() {
  issue(/*all=*/true);
  try {
    line_.queue->synchronize();
  } catch (const std::exception&) {
    // Ops that use the failed device report it.
  }
}

void CopyOutQueue::abandon() {
  while (!batches_.empty()) {
    Batch batch = std::move(batches_.front());
    batches_.pop_front();
    end_failed(std::move(batch));
  }
}

bool CopyOutQueue::has_room() {
  while (!in_flight_.empty() && in_flight_.front()->done->is_reached()) in_flight_.pop_front();
  if (line_.transfers.running(line_.direction) != nullptr) return false;
  size_t bytes = 0;
  for (const auto& track : in_flight_) bytes += track->bytes;
  const bool awaited = line_.transfers.has_unfinished(line_.direction);
  return awaited ? in_flight_.size() < TransferScheduler::kPiecesInFlight
                 : bytes < kBytesOutInFlight;
}

void CopyOutQueue::issue(bool all) {
  while (!batches_.empty() && (all || has_room())) {
    Batch& batch = batches_.front();
    try {
      issue_piece(batch);
    } catch (const std::exception&) {
      Batch failed = std::move(batch);
      batches_.pop_front();
      end_failed(std::move(failed));
      continue;
    }
    if (batch.next == batch.pieces.size()) batches_.pop_front();
  }
}

// Issues the next copies of a batch, until they have kPieceBytes together or the batch ends.
void CopyOutQueue::issue_piece(Batch& batch) {
  if (batch.next == 0) {
    line_.queue->wait(*batch.computed);
    line_.transfers.add_held(line_, now_s() - batch.added_s);
  }
  size_t end = batch.next, bytes = 0;
  while (end < batch.pieces.size() && bytes < TransferScheduler::kPieceBytes)
    bytes += batch.pieces[end++].bytes;
  const std::span<const CopyPiece> pieces(batch.pieces.data() + batch.next, end - batch.next);
  auto track =
      line_.transfers.issue_observed(line_, bytes, [&] { line_.queue->copy_to_host(pieces); });
  if (track != nullptr) in_flight_.push_back(std::move(track));
  if (end == batch.pieces.size()) {
    line_.queue->record(*issued_);
    line_.queue->run_on_host([done = batch.done] { done(/*failed=*/false); });
  }
  batch.next = end;
}

// Waits for those copies of the batch that were already issued, which may still write to its
// memory, and then calls `done` with `failed`.
void CopyOutQueue::end_failed(Batch batch) {
  try {
    line_.queue->synchronize();
  } catch (const std::exception&) {
    // Ops that use the failed device report it.
  }
  batch.done(/*failed=*/true);
}

}  // namespace spillway
