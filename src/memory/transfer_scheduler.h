// SPDX-License-Identifier: Apache-2.0
// The one owner of the copies between a device and host memory while a model runs: it makes their
// queues, decides which copy the link takes next, and counts what was copied.
//
// - Awaited copies, which ops of this step wait for (KV of the next layer, hidden states, q, k and
//   v for attention on the CPU), are issued immediately.
// - Weights that are read ahead are issued in pieces, few at a time. The thread that reads ahead
//   waits while an awaited copy in the same direction is running.
// - Copies out are those of KV blocks to a KV store, which keeps them in host memory and on disk
//   for later requests (kv/kv_store.h). Nothing waits for these copies: they are queued, and issued
//   in pieces while no awaited copy in the same direction is running.
//
// A copy is running from the end of the work before it in its queue until its bytes have arrived.
// One that still waits for an op holds nothing up: that op may wait for the weights that would be
// held up. Where no awaited queue is open in a direction, nothing is held back: all pieces are
// issued immediately.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "device/device.h"

namespace spillway {

enum class LinkDirection : uint8_t { kToDevice, kToHost };
inline constexpr int kLinkDirections = 2;

enum class TransferUse : uint8_t {
  kWeights,
  kSwappedKv,  // KV of sequences that live in host memory or on disk
  kLayerKv,    // KV of swapped layers: in host memory, loaded whole for the layer's part of a step
  kHiddenStates,  // offloaded between layers
  kAttention,     // q, k and v for attention on the CPU
  kStoredKv,      // KV blocks from and to a KV store
};
inline constexpr int kTransferUses = 6;
const char* transfer_use_name(TransferUse use);
const char* link_direction_name(LinkDirection direction);

struct TransferStats {
  uint64_t bytes = 0;
  int64_t copies = 0;
  double busy_s = 0;  // in which copies of at least kTrackedBytes were running
  double held_s = 0;  // in which copies waited for more urgent ones
};
// The statistics by TransferUse and LinkDirection.
using TransferTable = std::array<std::array<TransferStats, kLinkDirections>, kTransferUses>;

// Is told of each copy that the scheduler may hold back or cuts into pieces, so that a timeline can
// show when it ran. Methods are called by the thread that fills the queue.
class TransferObserver {
 public:
  virtual ~TransferObserver() = default;
  virtual size_t begin_copy(DeviceStream& queue) = 0;
  virtual void end_copy(DeviceStream& queue, size_t begun, TransferUse use,
                        LinkDirection direction) = 0;
};

class ReadAheadStream;
class CopyOutQueue;
class LineStream;

// One per device; the device must outlive it, and it must outlive the queues that it makes.
class TransferScheduler {
 public:
  // Smaller copies are counted, but neither hold others up nor are their times taken.
  static constexpr size_t kTrackedBytes = size_t{256} << 10;
  // Copies of this size reach the bus's full speed. An awaited copy waits for few of them.
  static constexpr size_t kPieceBytes = size_t{16} << 20;
  static constexpr size_t kPiecesInFlight = 3;

  explicit TransferScheduler(Device& device) : device_(device) {}
  ~TransferScheduler();
  TransferScheduler(const TransferScheduler&) = delete;
  TransferScheduler& operator=(const TransferScheduler&) = delete;

  Device& device() const { return device_; }
  // Make queues. Awaited queues and queues of copies out are filled by the thread that runs steps.
  std::unique_ptr<DeviceStream> open_awaited(TransferUse use, LinkDirection direction);
  std::unique_ptr<ReadAheadStream> open_read_ahead(TransferUse use);
  std::unique_ptr<CopyOutQueue> open_copies_out(TransferUse use);

  // Issues queued copies out: as many as the link has room for, or `all`. Each call of an awaited
  // copy does this too; call it at the end of each step, with `all` if no other step follows.
  void issue_copies_out(bool all = false);

  // Returns what was copied since the scheduler was made. Any thread may call it.
  TransferTable stats() const;
  // Tells `observer` of the copies from now on; null: no observer. Call it between steps.
  void observe(TransferObserver* observer) { observer_ = observer; }

 private:
  friend class LineStream;
  friend class AwaitedStream;
  friend class ReadAheadStream;
  friend class CopyOutQueue;
  struct Track;
  // A queue, and its copies that were not done when they were last looked at.
  struct Line {
    Line(TransferScheduler& of, TransferUse for_use, LinkDirection way, bool is_awaited);
    ~Line();

    TransferScheduler& transfers;
    const TransferUse use;
    const LinkDirection direction;
    const bool awaited;
    const std::unique_ptr<DeviceStream> queue;
    std::deque<std::shared_ptr<Track>> tracks;  // under the scheduler's mutex
  };

  // Calls `copy`, which fills the line's queue with copies of that many bytes in all, and keeps
  // track of them. Returns null for copies that are too small to be tracked.
  std::shared_ptr<Track> issue(Line& line, size_t bytes, const std::function<void()>& copy);
  // The same for copies that may be held back or are parts of others, which the observer sees.
  std::shared_ptr<Track> issue_observed(Line& line, size_t bytes,
                                        const std::function<void()>& copy);
  // Returns an awaited copy that is running, or null.
  std::shared_ptr<Track> running(LinkDirection direction);
  bool has_unfinished(LinkDirection direction);
  bool has_awaited(LinkDirection direction) const {
    return awaited_lines_[static_cast<size_t>(direction)].load() > 0;
  }
  void add_held(const Line& line, double seconds);
  void settle_locked(Line& line);
  std::shared_ptr<Track> make_track();

  Device& device_;
  std::atomic<TransferObserver*> observer_ = nullptr;
  std::array<std::atomic<int>, kLinkDirections> awaited_lines_ = {};
  std::vector<CopyOutQueue*> copies_out_;

  mutable std::mutex mutex_;
  std::vector<Line*> lines_;
  std::vector<std::shared_ptr<Track>> unused_;
  TransferTable stats_ = {};
};

// A queue of the scheduler whose copies are issued in a way of its own; everything else goes to the
// device's queue behind it.
class LineStream : public DeviceStream {
 public:
  void run_on_host(std::function<void()> work) override {
    line_.queue->run_on_host(std::move(work));
  }
  void store(HostSignal& signal, uint32_t value) override { line_.queue->store(signal, value); }
  void wait(const HostSignal& signal, uint32_t value) override { line_.queue->wait(signal, value); }
  void record(DeviceEvent& event) override { line_.queue->record(event); }
  void wait(const DeviceEvent& event) override { line_.queue->wait(event); }
  void synchronize() override { line_.queue->synchronize(); }

 protected:
  LineStream(TransferScheduler& transfers, TransferUse use, LinkDirection direction, bool awaited)
      : line_(transfers, use, direction, awaited) {}

  TransferScheduler::Line line_;
};

// A queue that a thread fills with copies that are needed later. Copies may block that thread.
class ReadAheadStream final : public LineStream {
 public:
  ReadAheadStream(TransferScheduler& transfers, TransferUse use)
      : LineStream(transfers, use, LinkDirection::kToDevice, /*awaited=*/false) {}

  void copy_to_device(std::span<const CopyPiece> pieces) override;
  void copy_to_host(std::span<const CopyPiece> pieces) override;

  // Sets whether ops wait for this queue now; while they do, its copies do not wait for awaited
  // ones. Any thread may call it.
  void set_urgent(bool urgent) { urgent_ = urgent; }

 private:
  void hold_back();
  void send(const CopyPiece& piece);

  std::atomic<bool> urgent_ = false;
  std::deque<std::shared_ptr<TransferScheduler::Track>> in_flight_;
};

// Copies to host memory that nothing waits for. Used by the thread that runs steps.
class CopyOutQueue {
 public:
  // Called on a host thread when a copy's bytes have arrived, or, with `failed`, as soon as it is
  // known that they will not.
  using Done = std::function<void(bool failed)>;

  CopyOutQueue(TransferScheduler& transfers, TransferUse use);
  // Waits until all copies are made or have failed.
  ~CopyOutQueue();
  CopyOutQueue(const CopyOutQueue&) = delete;
  CopyOutQueue& operator=(const CopyOutQueue&) = delete;

  // Queues copies that begin after the ops queued so far, and so copy their results. Does not throw
  // if a copy fails: `done` is called with `failed`, and the step goes on.
  void add(std::vector<CopyPiece> pieces, Done done);
  // Makes work that is added to `queue` from now on start after all copies added so far, which are
  // issued now.
  void make_wait(DeviceStream& queue);
  // Waits until all copies added so far are made or have failed.
  void synchronize();
  // Ends copies that are not issued yet as failed: the device has failed.
  void abandon();

 private:
  friend class TransferScheduler;
  struct Batch {
    std::unique_ptr<DeviceEvent> computed;
    std::vector<CopyPiece> pieces;
    size_t next = 0;
    Done done;
    double added_s = 0;
  };
  void issue(bool all);
  [[nodiscard]] bool has_room();
  void issue_piece(Batch& batch);
  void end_failed(Batch batch);

  TransferScheduler::Line line_;
  std::unique_ptr<DeviceEvent> issued_;
  std::deque<Batch> batches_;
  std::deque<std::shared_ptr<TransferScheduler::Track>> in_flight_;
};

}  // namespace spillway
