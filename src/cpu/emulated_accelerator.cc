// SPDX-License-Identifier: Apache-2.0
#include "cpu/emulated_accelerator.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <exception>
#include <functional>
#include <limits>
#include <mutex>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "base/byte_units.h"
#include "base/error.h"
#include "base/fault_points.h"
#include "cpu/linear/linear_int8.h"

namespace spillway {
namespace {

using Clock = std::chrono::steady_clock;

class EmulatedEvent final : public DeviceEvent {
 public:
  void synchronize() override { state_->wait_for(recorded()); }
  bool is_reached() const override {
    const std::lock_guard lock(state_->mutex);
    return state_->reached >= state_->recorded;
  }
  double seconds_after(const DeviceEvent& earlier) const override {
    const auto& other = *static_cast<const EmulatedEvent&>(earlier).state_;
    return std::chrono::duration<double>(state_->at - other.at).count();
  }

  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    int64_t recorded = 0, reached = 0;
    Clock::time_point at;

    void reach(int64_t count) {
      const std::lock_guard lock(mutex);
      reached = std::max(reached, count);
      at = Clock::now();
      changed.notify_all();
    }
    void wait_for(int64_t count) {
      std::unique_lock lock(mutex);
      changed.wait(lock, [&] { return reached >= count; });
    }
  };
  const std::shared_ptr<State>& state() const { return state_; }
  int64_t record() {
    const std::lock_guard lock(state_->mutex);
    return ++state_->recorded;
  }
  int64_t recorded() const {
    const std::lock_guard lock(state_->mutex);
    return state_->recorded;
  }

 private:
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

// The queue of ops. These are done on return, and so is everything else in this queue; a wait
// blocks the caller.
class InlineStream final : public DeviceStream {
 public:
  void copy_to_device(std::span<const CopyPiece> pieces) override {
    for (const CopyPiece& piece : pieces) std::memcpy(piece.to, piece.from, piece.bytes);
  }
  void copy_to_host(std::span<const CopyPiece> pieces) override { copy_to_device(pieces); }
  void run_on_host(std::function<void()> work) override { work(); }
  void store(HostSignal& signal, uint32_t value) override { signal.store(value); }
  void wait(const HostSignal& signal, uint32_t value) override { wait_for(signal, value); }
  void record(DeviceEvent& event) override {
    auto& emulated = static_cast<EmulatedEvent&>(event);
    emulated.state()->reach(emulated.record());
  }
  void wait(const DeviceEvent& event) override {
    const auto& emulated = static_cast<const EmulatedEvent&>(event);
    emulated.state()->wait_for(emulated.recorded());
  }
  void synchronize() override {}
};

// A queue with a thread that works through it, each copy after a delay.
class LateStream final : public DeviceStream {
 public:
  LateStream(const EmulatedAcceleratorOptions& options, uint64_t seed,
             std::shared_ptr<const std::atomic<double>> share, std::shared_ptr<EmulatedLinks> links)
      : options_(options),
        share_(std::move(share)),
        links_(std::move(links)),
        random_(seed),
        worker_([this] { work(); }) {}
  ~LateStream() override {
    {
      const std::lock_guard lock(mutex_);
      closing_ = true;
      changed_.notify_all();
    }
    worker_.join();
  }

  void copy_to_device(std::span<const CopyPiece> pieces) override {
    copy(pieces, links_->to_device_free);
  }
  void copy_to_host(std::span<const CopyPiece> pieces) override {
    copy(pieces, links_->to_host_free);
  }
  void run_on_host(std::function<void()> work) override { push(std::move(work)); }
  void store(HostSignal& signal, uint32_t value) override {
    push([&signal, value] { signal.store(value); }, true);
  }
  void wait(const HostSignal& signal, uint32_t value) override {
    push([&signal, value] { wait_for(signal, value); }, true);
  }
  void record(DeviceEvent& event) override {
    auto& emulated = static_cast<EmulatedEvent&>(event);
    push([state = emulated.state(), count = emulated.record()] { state->reach(count); }, true);
  }
  void wait(const DeviceEvent& event) override {
    const auto& emulated = static_cast<const EmulatedEvent&>(event);
    push([state = emulated.state(), count = emulated.recorded()] { state->wait_for(count); }, true);
  }
  void synchronize() override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return queue_.empty() && !busy_; });
    if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
  }

 private:
  struct Item {
    std::function<void()> work;
    bool orders;  // runs even after a failure, since other queues wait for it
  };
  void copy(std::span<const CopyPiece> pieces, Clock::time_point& free_at) {
    SPW_CHECK(injected_error("copy.device") == 0, kDevice, "the emulated accelerator fails");
    push([this, &free_at, mine = std::vector<CopyPiece>(pieces.begin(), pieces.end())] {
      Clock::time_point begin = Clock::now();
      size_t bytes = 0;
      std::this_thread::sleep_for(std::chrono::microseconds(
          std::uniform_int_distribution<int>(0, options_.max_delay_us)(random_)));
      for (const CopyPiece& piece : mine) {
        std::memcpy(piece.to, piece.from, piece.bytes);
        bytes += piece.bytes;
      }
      if (options_.bytes_per_s == 0) return;
      const double rate = static_cast<double>(options_.bytes_per_s) * *share_;
      const auto takes = std::chrono::duration_cast<Clock::duration>(
          std::chrono::duration<double>(static_cast<double>(bytes) / rate));
      if (options_.shares_link) {
        const std::lock_guard lock(links_->mutex);
        begin = std::max(begin, free_at);
        free_at = begin + takes;
      }
      std::this_thread::sleep_until(begin + takes);
    });
  }
  void push(std::function<void()> work, bool orders = false) {
    const std::lock_guard lock(mutex_);
    queue_.push_back({std::move(work), orders});
    changed_.notify_all();
  }
  void work() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [&] { return closing_ || !queue_.empty(); });
      if (queue_.empty()) return;
      const Item item = std::move(queue_.front());
      queue_.pop_front();
      if (failure_ && !item.orders) continue;
      busy_ = true;
      lock.unlock();
      std::exception_ptr failure;
      try {
        item.work();
      } catch (...) {
        failure = std::current_exception();
      }
      lock.lock();
      if (failure && !failure_) failure_ = failure;
      busy_ = false;
      changed_.notify_all();
    }
  }

  const EmulatedAcceleratorOptions options_;
  const std::shared_ptr<const std::atomic<double>> share_;
  const std::shared_ptr<EmulatedLinks> links_;
  std::mt19937_64 random_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Item> queue_;
  bool busy_ = false, closing_ = false;
  std::exception_ptr failure_;
  std::thread worker_;
};

}  // namespace

void EmulatedOps::embed(const WeightView& table, std::span<const int32_t> ids,
                        const Activations& out, LinearMode mode) {
  SPW_CHECK(injected_error("step.device") == 0, kDevice, "the emulated accelerator fails");
  ReplayingOps::embed(table, ids, out, mode);
}

void EmulatedOps::attention(const Activations& q, const KvLayerView& kv,
                            std::span<const SequenceSpan> spans, const AttentionParams& params,
                            const Activations& out) {
  const auto begin = Clock::now();
  ReplayingOps::attention(q, kv, spans, params, out);
  double seconds = options_.layer_us * 1e-6;
  if (options_.kv_bytes_per_s > 0) {
    int64_t blocks = 0;
    for (const SequenceSpan& span : spans) blocks += blocks_for_tokens(span.start + span.rows);
    seconds += static_cast<double>(2 * blocks * kv.block_bytes()) /
               static_cast<double>(options_.kv_bytes_per_s);
  }
  if (options_.clock != nullptr) {
    options_.clock->pass(seconds);
  } else if (seconds > 0) {
    std::this_thread::sleep_until(begin + std::chrono::duration_cast<Clock::duration>(
                                              std::chrono::duration<double>(seconds)));
  }
}

// Copies within the accelerator's memory, which is read and written at kv_bytes_per_s.
void EmulatedOps::copy(const Activations& from, const Activations& to) {
  CpuOps::copy(from, to);
  if (options_.clock == nullptr || options_.kv_bytes_per_s == 0) return;
  const int64_t bytes =
      from.rows * (row_bytes(from.dtype, from.cols) + row_bytes(to.dtype, to.cols));
  options_.clock->pass(static_cast<double>(bytes) / static_cast<double>(options_.kv_bytes_per_s));
}

namespace {

int32_t most_likely(std::span<const float> logits) {
  float best = -std::numeric_limits<float>::infinity();
  int32_t found = -1;
  for (size_t id = 0; id < logits.size(); ++id) {
    if (!(logits[id] < std::numeric_limits<float>::infinity())) return -1;  // also for NaN
    if (!(logits[id] > best)) continue;
    best = logits[id];
    found = static_cast<int32_t>(id);
  }
  return found;
}

// Samples the token at `uniform` of the probability of all tokens.
int32_t draw_one(std::span<const float> logits, const SampleRow& how) {
  SPW_ASSERT(how.top_k == 0 && how.top_p == 1 && how.min_p == 0);
  const int32_t best = most_likely(logits);
  if (best < 0) return best;
  const float top = logits[static_cast<size_t>(best)];
  const auto weight = [&](float logit) {
    return std::exp(double{(logit - top) / how.temperature});
  };
  double left = 0;
  for (const float logit : logits) left += weight(logit);
  left *= how.uniform;
  for (size_t id = 0; id < logits.size(); ++id) {
    left -= weight(logits[id]);
    if (left < 0) return static_cast<int32_t>(id);
  }
  return best;
}

}  // namespace

void EmulatedOps::sample(const Activations& logits, std::span<const SampleRow> rows,
                         std::span<SampledToken> tokens) {
  SPW_CHECK(injected_error("draw.device") == 0, kDevice, "the emulated accelerator fails");
  SPW_ASSERT(options_.draws && logits.rows == static_cast<int64_t>(rows.size()));
  SPW_ASSERT(tokens.size() == rows.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    float* const row = logits.f32(static_cast<int64_t>(i));
    const std::vector<float> before(row, row + logits.cols);
    for (const LogitAdjustment& a : rows[i].adjustments) {
      const float x = row[a.id] + a.bias;
      row[a.id] = (x > 0 ? x / a.repetition : x * a.repetition) - a.penalty;
    }
    const std::span<const float> adjusted(row, static_cast<size_t>(logits.cols));
    SampledToken& token = tokens[i];
    token.id = rows[i].temperature > 0 ? draw_one(adjusted, rows[i]) : most_likely(adjusted);
    if (token.id >= 0 && rows[i].logprobs >= 0)
      token.logprobs = compute_logprobs(before, token.id, rows[i].logprobs);
    // Logits may not be read after sampling, so they are poisoned.
    std::fill_n(row, logits.cols, std::numeric_limits<float>::quiet_NaN());
  }
}

EmulatedAccelerator::EmulatedAccelerator(const EmulatedAcceleratorOptions& options)
    : options_(options),
      pool_(options.threads),
      compute_(options.clock != nullptr ? make_clocked_compute(options.clock)
                                        : std::make_unique<InlineStream>()),
      ops_(*this, pool_, options) {
  info_ = {.name = "emulated",
           .hardware = "emulated accelerator",
           .features = "",
           .memory_bytes = static_cast<int64_t>(options.memory_bytes),
           .threads = pool_.threads()};
}

WeightLayout EmulatedAccelerator::preferred_layout(DType type, int64_t rows,
                                                   int64_t /*cols*/) const {
  return layout_for_kernels(type, rows);
}

Buffer EmulatedAccelerator::allocate(size_t bytes, MemoryTag tag) {
  SPW_ASSERT(bytes > 0);
  SPW_CHECK(bytes <= options_.memory_bytes - std::min(options_.memory_bytes, usage_.total()),
            kOutOfMemory,
            "{} need {}, but of the accelerator's budget of {} only {} are left (it holds: {})",
            memory_tag_name(tag), format_bytes(bytes), format_bytes(options_.memory_bytes),
            format_bytes(options_.memory_bytes - std::min(options_.memory_bytes, usage_.total())),
            usage_.describe());
  constexpr size_t kAlignment = 256;
  void* data =
      injected_error("alloc.device")
          ? nullptr
          : std::aligned_alloc(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment);
  SPW_CHECK(data != nullptr, kOutOfMemory, "no {} of memory left", format_bytes(bytes));
  std::memset(data, 0xff, bytes);
  usage_.add(tag, bytes);
  return Buffer(*this, static_cast<std::byte*>(data), bytes, tag);
}

void EmulatedAccelerator::release(std::byte* data, size_t bytes, MemoryTag tag) noexcept {
  usage_.remove(tag, bytes);
  std::free(data);
}

void EmulatedAccelerator::copy_to_device(std::byte* to, const std::byte* host, size_t bytes) {
  std::memcpy(to, host, bytes);
}

void EmulatedAccelerator::copy_to_host(std::byte* host, const std::byte* from, size_t bytes) {
  std::memcpy(host, from, bytes);
}

void EmulatedAccelerator::enter_thread() {
  SPW_CHECK(injected_error("thread.device") == 0, kDevice, "the emulated accelerator fails");
}

std::unique_ptr<DeviceStream> EmulatedAccelerator::make_stream() {
  if (options_.clock != nullptr) {
    return make_clocked_stream(options_.clock, [rate = static_cast<double>(options_.bytes_per_s),
                                                share = link_share_](size_t bytes) {
      return rate > 0 ? static_cast<double>(bytes) / (rate * *share) : 0;
    });
  }
  return std::make_unique<LateStream>(options_, options_.seed * 1000 + ++streams_, link_share_,
                                      links_);
}

std::unique_ptr<DeviceEvent> EmulatedAccelerator::make_event(bool /*timed*/) {
  if (options_.clock != nullptr) return make_clocked_event(options_.clock);
  return std::make_unique<EmulatedEvent>();
}

bool EmulatedAccelerator::try_pin(std::byte* host, size_t bytes) {
  if (injected_error("alloc.pin")) return false;
  if (bytes > options_.pinnable_bytes - std::min(options_.pinnable_bytes, pinned_bytes_))
    return false;
  pinned_bytes_ += bytes;
  pinned_[host] = bytes;
  return true;
}

void EmulatedAccelerator::unpin(std::byte* host) noexcept {
  const auto it = pinned_.find(host);
  if (it == pinned_.end()) return;
  pinned_bytes_ -= it->second;
  pinned_.erase(it);
}

}  // namespace spillway
