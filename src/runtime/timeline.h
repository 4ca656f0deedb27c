// SPDX-License-Identifier: Apache-2.0
// Records when the GPU, the CPU and the link did what, in steps that were really run.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "device/device.h"
#include "memory/transfer_scheduler.h"

namespace spillway {

enum class TimelineLane : uint8_t {
  kGpu,       // events of a step, including waits
  kGpuWaits,  // the waits in kGpu
  kCpu,       // the CPU executor
  kToGpu,     // copies of weights and KV to the device
  kToHost,    // copies of KV to the host
  kLinears,   // linear ops that CPU and GPU share, from the first start to the last end
};
inline constexpr int kTimelineLanes = 6;
const char* timeline_lane_name(TimelineLane lane);

// Points in the device's queues and in the host's time, on one clock. Filled by the threads of a
// step while they work; read after drain(). The device must outlive it.
class Timeline final : public TransferObserver {
 public:
  using Clock = std::chrono::steady_clock;

  explicit Timeline(Device& device);

  // Records a point in a queue. Called by the thread that fills the queue.
  size_t mark(DeviceStream& queue);
  void add(TimelineLane lane, std::string_view name, int layer, size_t begin, size_t end);
  void add(TimelineLane lane, std::string_view name, int layer, Clock::time_point begin,
           Clock::time_point end);
  size_t begin_copy(DeviceStream& queue) override { return mark(queue); }
  void end_copy(DeviceStream& queue, size_t begun, TransferUse use,
                LinkDirection direction) override;
  double now_s() const { return seconds(Clock::now()); }

  // Waits until all points are reached, and turns them into spans().
  void drain();

  struct Span {
    TimelineLane lane;
    std::string name;
    int layer;
    double begin_s, end_s;
  };
  const std::vector<Span>& spans() const { return spans_; }

  // Returns the seconds within an interval in which a lane worked; the GPU's waits do not count.
  double busy_s(TimelineLane lane, double begin_s, double end_s) const;
  // Linear ops shared by CPU and GPU in an interval, by name: how long they took, and for how long
  // the CPU and the link worked meanwhile.
  struct SharedLinear {
    int64_t count = 0;
    double seconds = 0, cpu_s = 0, to_gpu_s = 0;
  };
  std::map<std::string, SharedLinear> shared_linears(double begin_s, double end_s) const;
  // Returns the spans as a Chrome trace, which Perfetto reads.
  std::string chrome_trace() const;

 private:
  using Stretch = std::pair<double, double>;
  double seconds(Clock::time_point at) const {
    return std::chrono::duration<double>(at - origin_s_).count();
  }
  // Returns the intervals in which a lane worked, disjoint and in order.
  std::vector<Stretch> stretches(TimelineLane lane) const;

  struct Pending {
    TimelineLane lane;
    std::string name;
    int layer;
    size_t begin, end;
  };
  Device& device_;
  std::unique_ptr<DeviceEvent> origin_;
  Clock::time_point origin_s_;
  mutable std::mutex mutex_;
  std::vector<std::unique_ptr<DeviceEvent>> marks_;
  std::vector<Pending> pending_;
  std::vector<Span> spans_;
};

// Calls `work`, which fills `queue`, and adds a span for it to the timeline, unless that is null.
template <class Fn>
void drawn(Timeline* timeline, DeviceStream& queue, TimelineLane lane, const char* name, int layer,
           Fn&& work) {
  if (timeline == nullptr) return work();
  const size_t begin = timeline->mark(queue);
  work();
  timeline->add(lane, name, layer, begin, timeline->mark(queue));
}

}  // namespace spillway
