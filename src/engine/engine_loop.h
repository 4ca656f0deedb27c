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

// What came of one step.
struct StepReport {
  std::span<const GenerationEvent> events;  // in order
  double seconds = 0;
  EngineStats stats = {};                  // after it, since the engine began
  EngineState state = {};                  // after it
  bool failed = false;                     // it threw: what was being computed ended with kError
  std::vector<double> queue_waits_s = {};  // of requests that began in it (GenerationRequest::came)
  // Now and then, where the loop is asked to look.
  std::optional<EngineTraffic> traffic = {};
};

// Nobody else touches the engine, nor the device it runs on, while there is a loop. All methods may
// be called from any thread, also by the listener, but for wait(), which that would hold up.
class EngineLoop {
 public:
  // Called on the loop's thread after each step that did something: what it does there holds up the
  // next one. It does not throw.
  using Listener = std::function<void(const StepReport&)>;

  struct Options {
    // Requests that the engine has, running or waiting, which clients share as QueueShares says; 0:
    // any number.
    int max_outstanding = 0;
    bool reports_traffic = false;  // about once a second: it waits for the device then
  };

  // Both must outlive it.
  EngineLoop(Engine& engine, Listener listener, const Options& options);
  EngineLoop(Engine& engine, Listener listener) : EngineLoop(engine, std::move(listener), {}) {}
  // Ends in the middle: what was not finished ends with kCancelled, and the listener hears it.
  ~EngineLoop();
  EngineLoop(const EngineLoop&) = delete;
  EngineLoop& operator=(const EngineLoop&) = delete;

  // Requests of one client that belong together: all of them are taken, or none where the queue has
  // no place for the first, or after drain(). The engine gets the others as they get places, in any
  // step. One that loses its place to another client ends with kCancelled and `displaced`, and so
  // do those that belong to it. Throws kInvalidArgument for one that the engine cannot take; none
  // is taken then.
  [[nodiscard]] std::optional<std::vector<RequestId>> try_submit(
      std::vector<GenerationRequest> requests);
  [[nodiscard]] std::optional<RequestId> try_submit(GenerationRequest request);
  // Before try_submit(), with time to spare and no lock held: Engine::foresee() for each of them.
  void foresee(std::vector<GenerationRequest>& requests) const;
  // What try_submit() throws for such a request.
  void check(const GenerationRequest& request) const;
  // Ends them with kCancelled before the next step; unknown ids are ignored.
  void cancel(std::span<const RequestId> ids);
  void cancel(RequestId id) { cancel({&id, 1}); }

  // From now on nothing is taken; what was taken goes on to its end.
  void drain();
  // Until all that was taken has ended and been told, or until `deadline`: whether it has.
  bool wait(std::chrono::steady_clock::time_point deadline);
  bool wait_for(std::chrono::nanoseconds time) {
    return wait(std::chrono::steady_clock::now() + time);
  }

  // Requests taken that have not ended.
  int outstanding() const;
  bool is_draining() const;
  // Of the KV store, now; none where there is none.
  std::optional<KvStoreStats> store_stats() const;
  // Engine::max_sequence_tokens() and what else never changes.
  int64_t max_sequence_tokens() const;

 private:
  struct Mail {
    std::vector<std::pair<RequestId, GenerationRequest>> requests;
    std::vector<RequestId> displaced;
    std::vector<RequestId> cancelled;
    bool empty() const { return requests.empty() && displaced.empty() && cancelled.empty(); }
  };
  void run();
  // All below add what is to be told to `events`.
  void deliver(Mail& mail, std::vector<GenerationEvent>& events);
  void withdraw(RequestId id, std::vector<GenerationEvent>& events);
  // False where it failed.
  bool step(std::vector<GenerationEvent>& events);
  void cancel_all(Mail& mail, std::vector<GenerationEvent>& events);
  void tell(StepReport report);
  // With the mutex held: requests that have got a place go to the engine.
  void mail_placed(std::span<const RequestId> ids);

  Engine& engine_;
  Listener listener_;
  Options options_;

  mutable std::mutex mutex_;
  std::condition_variable has_mail_, has_ended_;
  Mail mail_;
  std::optional<QueueShares> shares_;                         // where the queue is bounded
  std::unordered_map<RequestId, GenerationRequest> outside_;  // without a place in it
  uint64_t next_id_ = 1;
  int outstanding_ = 0;
  bool draining_ = false;
  bool stopping_ = false;

  std::thread thread_;  // the last member: it uses all others
};

}  // namespace spillway
