// SPDX-License-Identifier: Apache-2.0
// Bodies of requests that wait to be read, in the order in which reading threads take them.
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

// Small and large bodies wait apart. One reader at a time works on large bodies, whenever there are
// any; all others take only small ones, so that neither waits for the other. Within both, clients
// share the readers by bytes (self-clocked fair queueing), and a client's own bodies are read as
// they came. Thread-safe.
class ReaderQueue {
 public:
  static constexpr size_t kLargeBytes = 256 << 10;  // from here on a body is large

  struct Job {
    uint64_t client = 0;
    size_t bytes = 0;  // of the body
    std::function<void()> work = {};
  };

  explicit ReaderQueue(size_t most_jobs) : most_jobs_(most_jobs) {}

  // False where it is full or closed; `job` is left as it was then.
  [[nodiscard]] bool try_push(Job& job);
  // Waits for one; none after close(). The caller calls done() for each.
  [[nodiscard]] std::optional<Job> take();
  // The job's memory is free again. True: it is time to give free memory back to the system.
  [[nodiscard]] bool done(size_t bytes);
  // Jobs that wait.
  size_t size() const;
  // Drops what waits.
  void close();

 private:
  struct Lane {
    // By when each is done if clients share the lane byte by byte, then by arrival.
    std::map<std::pair<uint64_t, uint64_t>, Job> jobs;
    std::unordered_map<uint64_t, uint64_t> last;  // of each client, when its newest job is done
    uint64_t clock = 0;                           // of the job that was taken last
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
  size_t freed_bytes_ = 0;  // of large bodies, since the last time done() was true
};

}  // namespace spillway
