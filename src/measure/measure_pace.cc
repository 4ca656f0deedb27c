// SPDX-License-Identifier: Apache-2.0
#include "measure/measure_pace.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/error.h"

namespace spillway {
namespace {

constexpr int kPaceRepeats = 9;
// A queue of this length hides the time of waiting for it.
constexpr double kQueueSeconds = 2e-3;
constexpr int kMostQueued = 256;

}  // namespace

MeasurePace::MeasurePace(double seconds, const std::atomic<bool>* cancel, Progress progress)
    : seconds_(seconds), cancel_(cancel), progress_(std::move(progress)) {}

void MeasurePace::begin(std::string_view what, double share) {
  what_ = what;
  shares_ += share;
  check();
}

double MeasurePace::left() const { return shares_ * seconds_ - elapsed(); }

void MeasurePace::check() {
  SPW_CHECK(cancel_ == nullptr || !cancel_->load(), kCancelled, "measuring was stopped");
  if (progress_) progress_(std::min(1.0, elapsed() / seconds_), what_);
}

double time_op(Device& device, MeasurePace& pace, double at_most_s,
               const std::function<void()>& op) {
  const auto time = [&](int calls) {
    pace.check();
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < calls; ++i) op();
    device.synchronize();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() / calls;
  };
  const double first = time(1);  // also loads kernels and allocates workspace
  double spent = first;
  int calls = 1;
  if (!device.host_visible() && first < at_most_s) {
    const double second = time(1);
    calls = static_cast<int>(std::clamp(kQueueSeconds / second, 1.0, double{kMostQueued}));
    spent += second;
  }
  std::vector<double> times;
  while (times.size() < kPaceRepeats && (times.empty() || spent < at_most_s)) {
    times.push_back(time(calls));
    spent += times.back() * calls;
  }
  const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
  std::nth_element(times.begin(), middle, times.end());
  return *middle;
}

void repeat_for(Device& device, MeasurePace& pace, double seconds,
                const std::function<void()>& op) {
  const auto start = std::chrono::steady_clock::now();
  while (std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() <
         seconds) {
    pace.check();
    op();
    device.synchronize();
  }
}

}  // namespace spillway
