// SPDX-License-Identifier: Apache-2.0
#include "serve/api/reader_queue.h"

#include <algorithm>

namespace spillway {
namespace {

constexpr size_t kJobBytes = 4 << 10;  // the least bytes that a body counts as
// After this many freed bytes memory is given back: the first limit holds if no large body waits,
// the second otherwise. Giving it back takes some milliseconds, in which other threads wait for the
// allocator.
constexpr size_t kFreedSoon = 1 << 20, kFreedUnderLoad = 16 << 20;

}  // namespace

bool ReaderQueue::try_push(Job& job) {
  {
    const std::lock_guard lock(mutex_);
    if (is_closed_ || small_.jobs.size() + large_.jobs.size() >= most_jobs_) return false;
    Lane& lane = is_large(job.bytes) ? large_ : small_;
    uint64_t& last = lane.last[job.client];
    last = std::max(lane.clock, last) + std::max(job.bytes, kJobBytes);
    lane.jobs.emplace(std::pair(last, arrivals_++), std::move(job));
  }
  has_job_.notify_one();
  return true;
}

ReaderQueue::Job ReaderQueue::pop(Lane& lane) {
  const auto first = lane.jobs.begin();
  lane.clock = first->first.first;
  Job job = std::move(first->second);
  lane.jobs.erase(first);
  std::erase_if(lane.last, [&](const auto& client) { return client.second <= lane.clock; });
  return job;
}

std::optional<ReaderQueue::Job> ReaderQueue::take() {
  std::unique_lock lock(mutex_);
  has_job_.wait(lock, [&] { return is_closed_ || !small_.jobs.empty() || may_take_large(); });
  if (is_closed_) return std::nullopt;
  if (!may_take_large()) return pop(small_);
  is_reading_large_ = true;
  return pop(large_);
}

bool ReaderQueue::done(size_t bytes) {
  if (!is_large(bytes)) return false;
  bool gives_back = false;
  {
    const std::lock_guard lock(mutex_);
    is_reading_large_ = false;
    freed_bytes_ += bytes;
    gives_back = freed_bytes_ >= (large_.jobs.empty() ? kFreedSoon : kFreedUnderLoad);
    if (gives_back) freed_bytes_ = 0;
  }
  has_job_.notify_one();
  return gives_back;
}

size_t ReaderQueue::size() const {
  const std::lock_guard lock(mutex_);
  return small_.jobs.size() + large_.jobs.size();
}

void ReaderQueue::close() {
  Lane small, large;
  {
    const std::lock_guard lock(mutex_);
    is_closed_ = true;
    std::swap(small, small_);
    std::swap(large, large_);
  }
  has_job_.notify_all();
}

}  // namespace spillway
