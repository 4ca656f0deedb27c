// SPDX-License-Identifier: Apache-2.0
#include "engine/engine_client.h"

#include <utility>

#include "base/error.h"

namespace spillway {

EngineClient::EngineClient(Engine& engine)
    : loop_(engine, [this](const StepReport& report) {
        {
          const std::lock_guard lock(mutex_);
          events_.insert(events_.end(), report.events.begin(), report.events.end());
          newest_ = report.stats;
        }
        has_come_.notify_one();
      }) {}

RequestId EngineClient::submit(GenerationRequest request) {
  std::vector<GenerationRequest> one;
  one.push_back(std::move(request));
  return submit(std::move(one)).front();
}

std::vector<RequestId> EngineClient::submit(std::vector<GenerationRequest> requests) {
  loop_.predict(requests);
  auto ids = loop_.try_submit(std::move(requests));
  SPW_ASSERT(ids.has_value());  // this loop has no bound and never drains
  return std::move(*ids);
}

std::vector<GenerationEvent> EngineClient::take(std::chrono::milliseconds time) {
  std::unique_lock lock(mutex_);
  has_come_.wait_for(lock, time, [&] { return !events_.empty(); });
  stats_ = newest_;
  return std::exchange(events_, {});
}

}  // namespace spillway
