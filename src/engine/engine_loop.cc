// SPDX-License-Identifier: Apache-2.0
#include "engine/engine_loop.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "base/error.h"
#include "base/thread_name.h"

namespace spillway {

EngineLoop::EngineLoop(Engine& engine, Listener listener, const Options& options)
    : engine_(engine),
      listener_(std::move(listener)),
      options_(options),
      thread_([this] { run(); }) {}

EngineLoop::~EngineLoop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = draining_ = true;
  }
  has_mail_.notify_one();
  thread_.join();
}

std::optional<std::vector<RequestId>> EngineLoop::try_submit(
    std::vector<GenerationRequest> requests) {
  for (const GenerationRequest& request : requests) engine_.check(request);
  std::vector<RequestId> ids;
  {
    const std::lock_guard lock(mutex_);
    const auto count = static_cast<int64_t>(requests.size());
    const bool full =
        options_.max_outstanding > 0 && outstanding_ + count > options_.max_outstanding;
    if (draining_ || full) return std::nullopt;
    outstanding_ += static_cast<int>(count);
    for (GenerationRequest& request : requests) {
      ids.push_back(RequestId{next_id_++});
      mail_.requests.emplace_back(ids.back(), std::move(request));
    }
  }
  has_mail_.notify_one();
  return ids;
}

std::optional<RequestId> EngineLoop::try_submit(GenerationRequest request) {
  std::vector<GenerationRequest> one;
  one.push_back(std::move(request));
  const auto ids = try_submit(std::move(one));
  return ids ? std::optional(ids->front()) : std::nullopt;
}

void EngineLoop::cancel(RequestId id) {
  {
    const std::lock_guard lock(mutex_);
    mail_.cancelled.push_back(id);
  }
  has_mail_.notify_one();
}

void EngineLoop::drain() {
  const std::lock_guard lock(mutex_);
  draining_ = true;
}

bool EngineLoop::wait(std::chrono::steady_clock::time_point deadline) {
  std::unique_lock lock(mutex_);
  return has_ended_.wait_until(lock, deadline, [&] { return outstanding_ == 0; });
}

int EngineLoop::outstanding() const {
  const std::lock_guard lock(mutex_);
  return outstanding_;
}

bool EngineLoop::is_draining() const {
  const std::lock_guard lock(mutex_);
  return draining_;
}

void EngineLoop::deliver(Mail& mail) {
  for (auto& [id, request] : mail.requests) engine_.submit(id, std::move(request));
  for (const RequestId id : mail.cancelled) engine_.cancel(id);
  mail = {};
}

void EngineLoop::step(std::vector<GenerationEvent>& events) {
  const auto collect = [&](const GenerationEvent& event) { events.push_back(event); };
  // Who was being computed is told; whoever waits has another chance.
  try {
    engine_.step(collect);
  } catch (const Error& error) {
    engine_.end_begun(error, collect);
  } catch (const std::exception& error) {
    engine_.end_begun(Error(ErrorCode::kInternal, error.what()), collect);
  }
}

void EngineLoop::run() {
  name_this_thread("engine");
  engine_.enter_thread();
  Mail mail;
  std::vector<GenerationEvent> events;
  constexpr double kTrafficSeconds = 1;
  double traffic_s = 0;  // of steps since it was looked at
  while (true) {
    {
      std::unique_lock lock(mutex_);
      has_mail_.wait(lock, [&] { return stopping_ || !mail_.empty() || engine_.has_requests(); });
      if (stopping_) return;
      std::swap(mail, mail_);
    }
    deliver(mail);
    events.clear();
    const auto begin = std::chrono::steady_clock::now();
    step(events);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    StepReport report{.events = events,
                      .seconds = took.count(),
                      .stats = engine_.stats(),
                      .state = engine_.state(),
                      .traffic = {}};
    traffic_s += took.count();
    if (options_.reports_traffic && traffic_s >= kTrafficSeconds) {
      try {
        report.traffic = engine_.take_traffic();
        report.traffic->seconds = traffic_s;
      } catch (const std::exception&) {
        // A device that failed says so in the next step, to those whom it concerns.
      }
      traffic_s = 0;
    }
    listener_(report);
    const auto ended = std::ranges::count_if(
        events, [](const GenerationEvent& e) { return e.finish.has_value(); });
    if (ended == 0) continue;
    {
      const std::lock_guard lock(mutex_);
      outstanding_ -= static_cast<int>(ended);
    }
    has_ended_.notify_all();
  }
}

}  // namespace spillway
