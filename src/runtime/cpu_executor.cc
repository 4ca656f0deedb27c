// SPDX-License-Identifier: Apache-2.0
#include "runtime/cpu_executor.h"

#include <utility>

#include "base/error.h"

namespace spillway {

CpuExecutor::CpuExecutor(Device& device)
    : device_(device), done_(device.make_signal()), thread_([this] { work(); }) {}

CpuExecutor::~CpuExecutor() {
  reset();
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

uint32_t CpuExecutor::start(DeviceStream& queue, HostSignal& ready, std::function<void()> work) {
  const uint32_t number = ++last_;
  queue.store(ready, number);  // first: if this throws, no work waits for the signal
  const std::lock_guard lock(mutex_);
  queue_.push_back({number, &ready, std::move(work)});
  changed_.notify_all();
  return number;
}

void CpuExecutor::wait_for_work(uint32_t number) { device_.compute().wait(*done_, number); }

void CpuExecutor::synchronize() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return queue_.empty() && !busy_; });
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
}

// A device that has failed never signals that work may begin, so the thread has to give up waiting.
void CpuExecutor::reset() noexcept {
  try {
    device_.synchronize();
  } catch (const Error&) {
    given_up_ = true;
  }
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return queue_.empty() && !busy_; });
  failure_ = nullptr;
  given_up_ = false;
}

void CpuExecutor::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return closing_ || !queue_.empty(); });
    if (queue_.empty()) return;
    const Work item = std::move(queue_.front());
    queue_.pop_front();
    busy_ = true;
    const bool left_out = failure_ != nullptr;
    lock.unlock();
    std::exception_ptr failure;
    if (wait_for(*item.ready, item.number, &given_up_) && !left_out) {
      try {
        item.run();
      } catch (...) {
        failure = std::current_exception();
      }
    }
    done_->store(item.number);  // also after a failure: the device waits for it
    lock.lock();
    if (failure && !failure_) failure_ = failure;
    busy_ = false;
    changed_.notify_all();
  }
}

}  // namespace spillway
