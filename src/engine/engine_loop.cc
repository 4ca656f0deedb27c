// SPDX-License-Identifier: Apache-2.0
#include "engine/engine_loop.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "base/error.h"
#include "base/thread_name.h"
#include "engine/engine.h"

namespace spillway {

EngineLoop::EngineLoop(Engine& engine, Listener listener, const Options& options)
    : engine_(engine), listener_(std::move(listener)), options_(options) {
  if (options_.max_outstanding > 0) shares_.emplace(options_.max_outstanding);
  thread_ = std::thread([this] { run(); });
}

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
  if (requests.empty()) return ids;
  {
    const std::lock_guard lock(mutex_);
    if (draining_) return std::nullopt;
    for (size_t i = 0; i < requests.size(); ++i) ids.push_back(RequestId{next_id_ + i});
    if (shares_) {
      const auto admission = shares_->try_admit(requests.front().client, ids);
      if (!admission) return std::nullopt;
      for (size_t i = 0; i < ids.size(); ++i) outside_.emplace(ids[i], std::move(requests[i]));
      if (admission->displaced) mail_.displaced.push_back(*admission->displaced);
      mail_placed(admission->placed);
    } else {
      for (size_t i = 0; i < ids.size(); ++i)
        mail_.requests.emplace_back(ids[i], std::move(requests[i]));
    }
    next_id_ += ids.size();
    outstanding_ += static_cast<int>(ids.size());
  }
  has_mail_.notify_one();
  return ids;
}

void EngineLoop::mail_placed(std::span<const RequestId> ids) {
  for (const RequestId id : ids) {
    auto placed = outside_.extract(id);
    mail_.requests.emplace_back(id, std::move(placed.mapped()));
  }
}

std::optional<RequestId> EngineLoop::try_submit(GenerationRequest request) {
  std::vector<GenerationRequest> one;
  one.push_back(std::move(request));
  const auto ids = try_submit(std::move(one));
  return ids ? std::optional(ids->front()) : std::nullopt;
}

void EngineLoop::predict(std::vector<GenerationRequest>& requests) const {
  std::string asked;  // of the request before; predict() clears it
  for (size_t i = 0; i < requests.size(); ++i) {
    GenerationRequest& request = requests[i];
    // Requests for several choices of one answer come together and get one prediction.
    const GenerationRequest* const before = i > 0 ? &requests[i - 1] : nullptr;
    const bool is_same = before != nullptr && request.asked == asked &&
                         request.prompt == before->prompt &&
                         request.max_tokens == before->max_tokens &&
                         request.ignore_end == before->ignore_end && request.stop == before->stop;
    if (is_same) {
      request.prediction = before->prediction;
      request.asked.clear();
      continue;
    }
    asked = request.asked;
    engine_.predict(request);
  }
}

void EngineLoop::check(const GenerationRequest& request) const { engine_.check(request); }

int64_t EngineLoop::max_sequence_tokens() const { return engine_.max_sequence_tokens(); }

std::optional<KvStoreStats> EngineLoop::store_stats() const { return engine_.store_stats(); }

void EngineLoop::cancel(std::span<const RequestId> ids) {
  {
    const std::lock_guard lock(mutex_);
    mail_.cancelled.insert(mail_.cancelled.end(), ids.begin(), ids.end());
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

namespace {

GenerationEvent failure(RequestId id, const Error& error) {
  GenerationEvent event;
  event.id = id;
  event.finish = FinishReason::kError;
  event.error = error.what();
  event.error_code = error.code();
  event.step_failed = true;
  return event;
}

GenerationEvent cancelled(RequestId id, bool displaced) {
  GenerationEvent event;
  event.id = id;
  event.finish = FinishReason::kCancelled;
  event.displaced = displaced;
  return event;
}

// Returns what `work` throws as an Error, or nothing if it does not throw.
template <class Work>
std::optional<Error> try_error(const Work& work) {
  try {
    work();
    return std::nullopt;
  } catch (const Error& error) {
    return error;
  } catch (const std::exception& error) {
    return Error(ErrorCode::kInternal, error.what());
  }
}

}  // namespace

void EngineLoop::deliver(Mail& mail, std::vector<GenerationEvent>& events) {
  for (auto& [id, request] : mail.requests) {
    const RequestId of = id;
    GenerationRequest& asked = request;
    if (const auto error = try_error([&] { engine_.submit(of, std::move(asked)); }))
      events.push_back(failure(of, *error));
  }
  // These may have come in the same mail as their requests.
  for (const RequestId id : mail.displaced) withdraw(id, events);
  for (const RequestId id : mail.cancelled) {
    engine_.cancel(id);
    if (!shares_) continue;
    const std::lock_guard lock(mutex_);
    // The request may have got a place since then, and be on its way to the engine.
    const auto is_placed = [&](const auto& placed) { return placed.first == id; };
    if (outside_.erase(id) + std::erase_if(mail_.requests, is_placed) == 0) continue;
    shares_->end(id);
    events.push_back(cancelled(id, /*displaced=*/false));
  }
  mail = {};
}

void EngineLoop::withdraw(RequestId id, std::vector<GenerationEvent>& events) {
  std::optional<GenerationRequest> request = engine_.try_withdraw(id);
  const std::lock_guard lock(mutex_);
  if (!request) return shares_->restore(id);
  outside_.emplace(id, std::move(*request));
  for (const RequestId refused : shares_->withdrawn(id)) {
    outside_.erase(refused);
    events.push_back(cancelled(refused, /*displaced=*/true));
  }
}

bool EngineLoop::step(std::vector<GenerationEvent>& events) {
  const auto collect = [&](const GenerationEvent& event) { events.push_back(event); };
  const auto error = try_error([&] { engine_.step(collect); });
  // Requests that had begun end with the error; waiting ones stay and may succeed.
  if (error) engine_.end_begun(*error, collect);
  return !error;
}

void EngineLoop::cancel_all(Mail& mail, std::vector<GenerationEvent>& events) {
  deliver(mail, events);
  engine_.cancel_all([&](const GenerationEvent& event) { events.push_back(event); });
  const std::lock_guard lock(mutex_);
  for (const auto& [id, request] : outside_) events.push_back(cancelled(id, /*displaced=*/false));
  outside_.clear();
}

void EngineLoop::tell(StepReport report) {
  report.stats = engine_.stats();
  report.state = engine_.state();
  report.queue_waits_s = engine_.take_queue_waits();
  listener_(report);
  const auto ended = std::ranges::count_if(
      report.events, [](const GenerationEvent& e) { return e.finish.has_value(); });
  if (!shares_ && ended == 0) return;
  {
    const std::lock_guard lock(mutex_);
    outstanding_ -= static_cast<int>(ended);
    if (shares_) {
      for (const RequestId id : engine_.begun()) shares_->begin(id);
      for (const GenerationEvent& event : report.events)
        if (event.finish) shares_->end(event.id);
      mail_placed(shares_->fill());
    }
  }
  if (ended > 0) has_ended_.notify_all();
}

void EngineLoop::run() {
  name_this_thread("engine");
  // If this thread cannot use the device, each step ends its requests with that error.
  const auto entering = try_error([&] { engine_.enter_thread(); });
  Mail mail;
  std::vector<GenerationEvent> events;
  constexpr double kTrafficSeconds = 1;
  double traffic_s = 0;  // seconds of steps since the last look at the traffic
  while (true) {
    bool stops = false;
    {
      std::unique_lock lock(mutex_);
      has_mail_.wait(lock, [&] { return stopping_ || !mail_.empty() || engine_.has_requests(); });
      stops = stopping_;
      std::swap(mail, mail_);
    }
    events.clear();
    if (stops) {
      cancel_all(mail, events);
      if (!events.empty()) tell({.events = events});
      return;
    }
    deliver(mail, events);
    const auto begin = std::chrono::steady_clock::now();
    bool failed = false;
    if (entering) {
      failed = true;
      engine_.end_begun(*entering, [&](const GenerationEvent& event) { events.push_back(event); });
    } else {
      failed = !step(events);
    }
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    StepReport report{.events = events, .seconds = took.count(), .failed = failed};
    traffic_s += took.count();
    if (options_.reports_traffic && traffic_s >= kTrafficSeconds) {
      try {
        report.traffic = engine_.take_traffic();
        report.traffic->seconds = traffic_s;
      } catch (const std::exception&) {
        // A failed device makes the next step fail, which reports it to the requests concerned.
      }
      traffic_s = 0;
    }
    tell(std::move(report));
  }
}

}  // namespace spillway
