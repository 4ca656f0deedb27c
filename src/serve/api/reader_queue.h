// SPDX-License-Identifier: Apache-2.0
// A queue of request bodies that wait for reader threads, which shares these among clients.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>

namespace spillway {

// Small and large bodies wait in separate lanes. One reader at a time works on large bodies
// whenever there are any; all others take only small ones, so that neither lane waits for the
// other. Within a lane, clients share the readers by bytes (self-clocked fair queueing), and a
// client's own bodies are parsed in order. Thread-safe.
class ReaderQueue {
 public:
  static constexpr size_t kLargeBytes = 256 << 10;  // bodies from this size on are large

  struct Job {
    uint64_t client = 0;
    size_t bytes = 0;  // size of the body
    std::function<void()> work = {};
  };

  explicit ReaderQueue(size_t most_jobs) : most_jobs_(most_jobs) {}

  // Returns false if the queue is full or closed, and then leaves `job` as it was.
  [[nodiscard]] bool try_push(Job& job);
  // Waits for a job; returns nullopt after close(). The caller calls done() for each job.
  [[nodiscard]] std::optional<Job> take();
  // Reports that a job's memory is free again. Returns true when free memory should be given back
  // to the system.
  [[nodiscard]] bool done(size_t bytes);
  // Returns the number of waiting jobs.
  size_t size() const;
  // Drops all waiting jobs.
  void close();

 private:
  struct Lane {
    // Ordered by virtual finish time (if clients share the lane byte by byte), then by arrival.
    std::map<std::pair<uint64_t, uint64_t>, Job> jobs;
    std::unordered_map<uint64_t, uint64_t> last;  // virtual finish time of each client's newest job
    uint64_t clock = 0;  // virtual finish time of the job that was taken last
  };
  static bool is_large(size_t bytes) { return bytes >= kLargeBytes; }
  bool may_take_large() const { return !large_.jobs.empty() && !is_reading_large_; }
  static Job pop(Lane& lane);

  mutable std::mutex mutex_;
  std::condition_variable has_job_;
  Lane small_, large_;
  size_t most_jobs_;
  uint64_t arrivals_ = 0;
  bool is_reading_large_ = false;
  bool is_closed_ = false;
  size_t freed_bytes_ = 0;  // freed by large bodies since done() last returned true
};

}  // namespace spillway
