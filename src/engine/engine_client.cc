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
  const auto id = loop_.try_submit(std::move(request));
  SPW_ASSERT(id.has_value());  // nothing bounds this loop
  return *id;
}

std::vector<RequestId> EngineClient::submit(std::vector<GenerationRequest> requests) {
  auto ids = loop_.try_submit(std::move(requests));
  SPW_ASSERT(ids.has_value());
  return std::move(*ids);
}

std::vector<GenerationEvent> EngineClient::take(std::chrono::milliseconds time) {
  std::unique_lock lock(mutex_);
  has_come_.wait_for(lock, time, [&] { return !events_.empty(); });
  stats_ = newest_;
  return std::exchange(events_, {});
}

}  // namespace spillway
