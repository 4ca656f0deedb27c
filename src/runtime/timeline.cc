// SPDX-License-Identifier: Apache-2.0
#include "runtime/timeline.h"

#include <algorithm>

#include "plan/chrome_trace.h"

namespace spillway {

const char* timeline_lane_name(TimelineLane lane) {
  constexpr const char* kNames[kTimelineLanes] = {
      "GPU", "GPU waits", "CPU", "to the GPU", "to the host", "shared linear layers"};
  return kNames[static_cast<size_t>(lane)];
}

Timeline::Timeline(Device& device) : device_(device), origin_(device.make_event(/*timed=*/true)) {
  device.synchronize();
  device.compute().record(*origin_);
  origin_->synchronize();
  origin_s_ = Clock::now();
}

void Timeline::end_copy(DeviceStream& queue, size_t begun, TransferUse use,
                        LinkDirection direction) {
  const bool to_device = direction == LinkDirection::kToDevice;
  add(to_device ? TimelineLane::kToGpu : TimelineLane::kToHost,
      use == TransferUse::kWeights ? "weights" : "KV for the store", -1, begun, mark(queue));
}

size_t Timeline::mark(DeviceStream& queue) {
  auto event = device_.make_event(/*timed=*/true);
  queue.record(*event);
  const std::lock_guard lock(mutex_);
  marks_.push_back(std::move(event));
  return marks_.size() - 1;
}

void Timeline::add(TimelineLane lane, std::string_view name, int layer, size_t begin, size_t end) {
  const std::lock_guard lock(mutex_);
  pending_.push_back({lane, std::string(name), layer, begin, end});
}

void Timeline::add(TimelineLane lane, std::string_view name, int layer, Clock::time_point begin,
                   Clock::time_point end) {
  const std::lock_guard lock(mutex_);
  spans_.push_back({lane, std::string(name), layer, seconds(begin), seconds(end)});
}

void Timeline::drain() {
  device_.synchronize();
  const std::lock_guard lock(mutex_);
  for (const Pending& of : pending_) {
    marks_[of.end]->synchronize();
    spans_.push_back({of.lane, of.name, of.layer, marks_[of.begin]->seconds_after(*origin_),
                      marks_[of.end]->seconds_after(*origin_)});
  }
  pending_.clear();
  std::ranges::sort(spans_, {}, &Span::begin_s);
}

std::vector<Timeline::Stretch> Timeline::stretches(TimelineLane lane) const {
  std::vector<Stretch> all;
  for (const Span& span : spans_) {
    if (span.lane != lane || span.end_s <= span.begin_s) continue;
    if (!all.empty() && span.begin_s <= all.back().second) {
      all.back().second = std::max(all.back().second, span.end_s);
    } else {
      all.emplace_back(span.begin_s, span.end_s);
    }
  }
  return all;
}

namespace {

using Stretch = std::pair<double, double>;

double overlap(const Stretch& a, const Stretch& b) {
  return std::max(0.0, std::min(a.second, b.second) - std::max(a.first, b.first));
}

double overlap(const std::vector<Stretch>& of, const Stretch& with) {
  double seconds = 0;
  auto at = std::ranges::lower_bound(of, with.first, {}, &Stretch::second);
  for (; at != of.end() && at->first < with.second; ++at) seconds += overlap(*at, with);
  return seconds;
}

}  // namespace

double Timeline::busy_s(TimelineLane lane, double begin_s, double end_s) const {
  const Stretch all{begin_s, end_s};
  const double busy = overlap(stretches(lane), all);
  if (lane != TimelineLane::kGpu) return busy;
  return std::max(0.0, busy - overlap(stretches(TimelineLane::kGpuWaits), all));
}

std::map<std::string, Timeline::SharedLinear> Timeline::shared_linears(double begin_s,
                                                                       double end_s) const {
  const std::vector<Stretch> cpu = stretches(TimelineLane::kCpu),
                             link = stretches(TimelineLane::kToGpu);
  std::map<std::string, SharedLinear> by_name;
  for (const Span& span : spans_) {
    if (span.lane != TimelineLane::kLinears || span.begin_s < begin_s || span.end_s > end_s)
      continue;
    SharedLinear& of = by_name[span.name];
    const Stretch here{span.begin_s, span.end_s};
    ++of.count;
    of.seconds += span.end_s - span.begin_s;
    of.cpu_s += overlap(cpu, here);
    of.to_gpu_s += overlap(link, here);
  }
  return by_name;
}

std::string Timeline::chrome_trace() const {
  ChromeTrace trace;
  for (int i = 0; i < kTimelineLanes; ++i)
    trace.add_lane(i, timeline_lane_name(static_cast<TimelineLane>(i)));
  for (const Span& span : spans_) {
    if (span.end_s <= span.begin_s) continue;
    trace.add_span(static_cast<int>(span.lane), span.name, span.begin_s, span.end_s - span.begin_s,
                   {{"layer", span.layer}});
  }
  return trace.text();
}

}  // namespace spillway
