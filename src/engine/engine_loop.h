// SPDX-License-Identifier: Apache-2.0
// The thread that owns a model: requests go in through a bounded mailbox, events come out.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/generation.h"
#include "schedule/queue_shares.h"

namespace spillway {

class Engine;

// The result of one step.
struct StepReport {
  std::span<const GenerationEvent> events;  // in order
  double seconds = 0;
  EngineStats stats = {};  // totals since the engine began
  EngineState state = {};  // after the step
  bool failed = false;     // the step threw: the requests that had begun ended with kError
  std::vector<double> queue_waits_s = {};  // of requests that began in it (GenerationRequest::came)
  // Set about once a second with Options::reports_traffic.
  std::optional<EngineTraffic> traffic = {};
};

// Owns the thread that runs an engine. Nothing else may use the engine or its device while there is
// a loop. Any thread may call any method, and so may the listener, except wait(), which it would
// block.
class EngineLoop {
 public:
  // Called on the loop's thread after each step that did something; the next step begins when it
  // returns. It must not throw.
  using Listener = std::function<void(const StepReport&)>;

  struct Options {
    // The most requests that the engine has, running or waiting; clients share them as QueueShares
    // says. 0: any number.
    int max_outstanding = 0;
    bool reports_traffic = false;  // about once a second; each report waits for the device
  };

  // The engine and all that the listener refers to must outlive the loop.
  EngineLoop(Engine& engine, Listener listener, const Options& options);
  EngineLoop(Engine& engine, Listener listener) : EngineLoop(engine, std::move(listener), {}) {}
  // Ends unfinished requests with kCancelled; the listener receives these events.
  ~EngineLoop();
  EngineLoop(const EngineLoop&) = delete;
  EngineLoop& operator=(const EngineLoop&) = delete;

  // Submits requests of one client that belong together: all of them are taken, or none (nullopt)
  // if the queue has no place for the first, or after drain(). The engine gets the others as they
  // get places, in any step. One that loses its place to another client ends with kCancelled and
  // `displaced`, and so do those that belong to it. Throws kInvalidArgument for one that the engine
  // cannot take; none is taken then.
  [[nodiscard]] std::optional<std::vector<RequestId>> try_submit(
      std::vector<GenerationRequest> requests);
  [[nodiscard]] std::optional<RequestId> try_submit(GenerationRequest request);
  // Calls Engine::predict() for each request. It takes time: call it before try_submit(), with no
  // lock held.
  void predict(std::vector<GenerationRequest>& requests) const;
  // Throws what try_submit() would throw for this request.
  void check(const GenerationRequest& request) const;
  // Ends these requests with kCancelled before the next step; unknown ids are ignored.
  void cancel(std::span<const RequestId> ids);
  void cancel(RequestId id) { cancel({&id, 1}); }

  // Takes no more requests; those that were taken go on to their end.
  void drain();
  // Waits until all requests taken have ended and their events were reported, or until `deadline`.
  // Returns whether they have.
  bool wait(std::chrono::steady_clock::time_point deadline);
  bool wait_for(std::chrono::nanoseconds time) {
    return wait(std::chrono::steady_clock::now() + time);
  }

  // Returns the number of requests taken that have not ended.
  int outstanding() const;
  bool is_draining() const;
  // Returns the current statistics of the KV store, which keeps KV blocks for later requests, or
  // nothing if there is none.
  std::optional<KvStoreStats> store_stats() const;
  // Returns Engine::max_sequence_tokens(), which never changes.
  int64_t max_sequence_tokens() const;

 private:
  struct Mail {
    std::vector<std::pair<RequestId, GenerationRequest>> requests;
    std::vector<RequestId> displaced;
    std::vector<RequestId> cancelled;
    bool empty() const { return requests.empty() && displaced.empty() && cancelled.empty(); }
  };
  void run();
  // The functions below append the events to report to `events`.
  void deliver(Mail& mail, std::vector<GenerationEvent>& events);
  void withdraw(RequestId id, std::vector<GenerationEvent>& events);
  // Returns false if the step failed.
  bool step(std::vector<GenerationEvent>& events);
  void cancel_all(Mail& mail, std::vector<GenerationEvent>& events);
  void tell(StepReport report);
  // Passes requests that have got a place in the queue on to the engine. The mutex must be held.
  void mail_placed(std::span<const RequestId> ids);

  Engine& engine_;
  Listener listener_;
  Options options_;

  mutable std::mutex mutex_;
  std::condition_variable has_mail_, has_ended_;
  Mail mail_;
  std::optional<QueueShares> shares_;  // set if the queue is bounded
  // Requests without a place in the queue.
  std::unordered_map<RequestId, GenerationRequest> outside_;
  uint64_t next_id_ = 1;
  int outstanding_ = 0;
  bool draining_ = false;
  bool stopping_ = false;

  std::thread thread_;  // the last member: it uses all others
};

}  // namespace spillway
