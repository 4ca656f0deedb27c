// SPDX-License-Identifier: Apache-2.0
// transfer_stalls: measures how long compute waits for bytes while weights stream to the device,
// each layer's KV comes in and goes out, and a KV store copies blocks out, all at the same time.
// Runs alternate between queues that know nothing of each other and those of a TransferScheduler.
//
// The work of a layer is a pause in the compute queue; everything that moves is copied for real, on
// a GPU (--device cuda) or on an emulated accelerator whose queues share one link.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <fstream>
#include <functional>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "bench/median.h"
#include "cli/local_devices.h"
#include "cpu/cpu_device.h"
#include "cpu/emulated_accelerator.h"
#include "memory/pinned_buffer.h"
#include "memory/transfer_scheduler.h"
#include "runtime/timeline.h"

namespace spillway {
namespace {

using Clock = std::chrono::steady_clock;
using nlohmann::json;

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr size_t kSlots = 2;

struct Options {
  std::string device = "emulated";
  double link_gb_per_s = 3;  // of the emulated link, in each direction
  int layers = 96;
  double layer_ms = 24;
  uint64_t weights_mib = 48, kv_mib = 4, kv_out_mib = 1, stored_mib = 128;
  int stored_every = 24;  // layers between two copies out
  int rounds = 5;
  std::string trace = {};
  bool as_json = false;
};

// The queues of a run, made in one of two ways.
struct Queues {
  std::unique_ptr<DeviceStream> weights, kv_in, kv_out;
  std::function<void(std::vector<CopyPiece>)> copy_out;
  std::function<void(bool)> set_urgent = [](bool /*urgent*/) {};
};

class Run {
 public:
  Run(Device& device, CpuDevice& host, const Options& options)
      : device_(device),
        options_(options),
        weights_(host, device, options.weights_mib * kMiB, MemoryTag::kWeights),
        kv_(host, device, options.kv_mib * kMiB, MemoryTag::kKv),
        stored_(host, device, options.stored_mib * kMiB, MemoryTag::kKv),
        kv_on_device_(device.allocate(2 * options.kv_mib * kMiB, MemoryTag::kKv)),
        stored_on_device_(device.allocate(options.stored_mib * kMiB, MemoryTag::kKv)) {
    for (size_t i = 0; i < kSlots; ++i) {
      slots_.push_back(device.allocate(options.weights_mib * kMiB, MemoryTag::kStaging));
      for (auto* events : {&loaded_, &left_, &kv_loaded_, &kv_stored_})
        events->push_back(device.make_event());
    }
    attended_ = device.make_event();
  }

  // Returns the seconds in which compute waited.
  double stalled_s(Queues& queues) {
    issued_ = released_ = 0;
    std::jthread reader([&] { read_ahead(queues); });
    device_.synchronize();
    const auto begin = Clock::now();
    load_kv(queues, 0);
    for (int layer = 0; layer < options_.layers; ++layer) {
      if (layer + 1 < options_.layers) load_kv(queues, layer + 1);
      run_layer(queues, layer);
      if (layer % options_.stored_every == options_.stored_every / 2) {
        std::vector<CopyPiece> pieces;
        for (uint64_t at = 0; at < options_.stored_mib * kMiB; at += kMiB)
          pieces.push_back({stored_.data() + at, stored_on_device_.data() + at, kMiB});
        queues.copy_out(std::move(pieces));
      }
    }
    DeviceStream& compute = device_.compute();
    const auto ended = device_.make_event();
    compute.record(*ended);
    ended->synchronize();
    const std::chrono::duration<double> took = Clock::now() - begin;
    reader.join();
    for (DeviceStream* queue : {queues.weights.get(), queues.kv_in.get(), queues.kv_out.get()})
      queue->synchronize();
    return took.count() - options_.layers * options_.layer_ms / 1e3;
  }

 private:
  size_t slot(int layer) const { return static_cast<size_t>(layer) % kSlots; }

  void read_ahead(Queues& queues) {
    device_.enter_thread();
    for (int layer = 0; layer < options_.layers; ++layer) {
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return layer < released_ + static_cast<int>(kSlots); });
      }
      queues.weights->wait(*left_[slot(layer)]);
      const CopyPiece piece{slots_[slot(layer)].data(), weights_.data(), weights_.bytes()};
      queues.weights->copy_to_device({&piece, 1});
      queues.weights->record(*loaded_[slot(layer)]);
      const std::lock_guard lock(mutex_);
      ++issued_;
      changed_.notify_all();
    }
  }
  void load_kv(Queues& queues, int layer) {
    queues.kv_in->wait(*kv_stored_[slot(layer)]);
    std::byte* const to = kv_on_device_.data() + slot(layer) * kv_.bytes();
    const CopyPiece piece{to, kv_.data(), kv_.bytes()};
    queues.kv_in->copy_to_device({&piece, 1});
    queues.kv_in->record(*kv_loaded_[slot(layer)]);
  }
  void run_layer(Queues& queues, int layer) {
    {
      std::unique_lock lock(mutex_);
      queues.set_urgent(issued_ <= layer);
      changed_.wait(lock, [&] { return issued_ > layer; });
      queues.set_urgent(false);
    }
    DeviceStream& compute = device_.compute();
    compute.wait(*loaded_[slot(layer)]);
    compute.wait(*kv_loaded_[slot(layer)]);
    compute.run_on_host([ms = options_.layer_ms] {
      std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(ms));
    });
    compute.record(*attended_);
    queues.kv_out->wait(*attended_);
    const size_t bytes = options_.kv_out_mib * kMiB;
    const CopyPiece piece{kv_.data(), kv_on_device_.data() + slot(layer) * kv_.bytes(), bytes};
    queues.kv_out->copy_to_host({&piece, 1});
    queues.kv_out->record(*kv_stored_[slot(layer)]);
    compute.record(*left_[slot(layer)]);
    const std::lock_guard lock(mutex_);
    ++released_;
    changed_.notify_all();
  }

  Device& device_;
  const Options& options_;
  PinnedBuffer weights_, kv_, stored_;
  Buffer kv_on_device_, stored_on_device_;
  std::vector<Buffer> slots_;
  std::vector<std::unique_ptr<DeviceEvent>> loaded_, left_, kv_loaded_, kv_stored_;
  std::unique_ptr<DeviceEvent> attended_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int issued_ = 0, released_ = 0;
};

// Queues that know nothing of each other: copies are issued whole, weights in pieces of 32 MiB.
class PlainWeights final : public DeviceStream {
 public:
  explicit PlainWeights(Device& device) : queue_(device.make_stream()) {}
  void copy_to_device(std::span<const CopyPiece> pieces) override {
    constexpr size_t kMost = 32 * kMiB;
    for (const CopyPiece& piece : pieces) {
      for (size_t done = 0; done < piece.bytes; done += kMost) {
        const CopyPiece part{piece.to + done, piece.from + done,
                             std::min<size_t>(kMost, piece.bytes - done)};
        queue_->copy_to_device({&part, 1});
      }
    }
  }
  void copy_to_host(std::span<const CopyPiece> pieces) override { queue_->copy_to_host(pieces); }
  void run_on_host(std::function<void()> work) override { queue_->run_on_host(std::move(work)); }
  void store(HostSignal& signal, uint32_t value) override { queue_->store(signal, value); }
  void wait(const HostSignal& signal, uint32_t value) override { queue_->wait(signal, value); }
  void record(DeviceEvent& event) override { queue_->record(event); }
  void wait(const DeviceEvent& event) override { queue_->wait(event); }
  void synchronize() override { queue_->synchronize(); }

 private:
  std::unique_ptr<DeviceStream> queue_;
};

double plain_run(Device& device, CpuDevice& host, const Options& options) {
  Run run(device, host, options);
  Queues queues{.weights = std::make_unique<PlainWeights>(device),
                .kv_in = device.make_stream(),
                .kv_out = device.make_stream(),
                .copy_out = {}};
  const auto out = device.make_stream();
  const auto computed = device.make_event();
  queues.copy_out = [&](std::vector<CopyPiece> pieces) {
    device.compute().record(*computed);
    out->wait(*computed);
    out->copy_to_host(pieces);
  };
  const double stalled = run.stalled_s(queues);
  out->synchronize();
  return stalled;
}

double scheduled_run(Device& device, CpuDevice& host, const Options& options, Timeline* timeline) {
  Run run(device, host, options);
  TransferScheduler transfers(device);
  transfers.observe(timeline);
  auto weights = transfers.open_read_ahead(TransferUse::kWeights);
  const auto out = transfers.open_copies_out(TransferUse::kStoredKv);
  Queues queues;
  queues.set_urgent = [&stream = *weights](bool urgent) { stream.set_urgent(urgent); };
  queues.weights = std::move(weights);
  queues.kv_in = transfers.open_awaited(TransferUse::kSwappedKv, LinkDirection::kToDevice);
  queues.kv_out = transfers.open_awaited(TransferUse::kSwappedKv, LinkDirection::kToHost);
  queues.copy_out = [&](std::vector<CopyPiece> pieces) {
    out->add(std::move(pieces), [](bool /*failed*/) {});
  };
  const double stalled = run.stalled_s(queues);
  out->synchronize();
  return stalled;
}

std::unique_ptr<Device> make_device(const Options& options) {
  if (options.device != "emulated") return local_devices().make({.name = options.device});
  EmulatedAcceleratorOptions emulated;
  emulated.bytes_per_s = static_cast<uint64_t>(options.link_gb_per_s * 1e9);
  emulated.shares_link = true;
  emulated.max_delay_us = 0;
  return std::make_unique<EmulatedAccelerator>(emulated);
}

int run_main(int argc, char** argv) {
  Options options;
  CLI::App app("how long compute waits while weights, KV and a store's copies share a link");
  app.add_option("--device", options.device, "emulated, cuda")->capture_default_str();
  app.add_option("--link", options.link_gb_per_s, "GB/s of the emulated link")
      ->capture_default_str();
  app.add_option("--layers", options.layers)->capture_default_str();
  app.add_option("--layer-ms", options.layer_ms)->capture_default_str();
  app.add_option("--weights", options.weights_mib, "MiB of a layer")->capture_default_str();
  app.add_option("--kv", options.kv_mib, "MiB of a layer's KV, in")->capture_default_str();
  app.add_option("--kv-out", options.kv_out_mib, "MiB of a layer's KV, out")->capture_default_str();
  app.add_option("--stored", options.stored_mib, "MiB that the store copies out at a time")
      ->capture_default_str();
  app.add_option("--stored-every", options.stored_every, "layers between these")
      ->capture_default_str();
  app.add_option("--rounds", options.rounds)->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--trace", options.trace, "writes the last run's copies as a Chrome trace");
  app.add_flag("--json", options.as_json);
  CLI11_PARSE(app, argc, argv);
  const std::unique_ptr<Device> device = make_device(options);
  CpuDevice host;
  std::vector<double> plain, scheduled;
  std::unique_ptr<Timeline> timeline;
  for (int round = 0; round < options.rounds; ++round) {
    plain.push_back(plain_run(*device, host, options));
    if (!options.trace.empty()) timeline = std::make_unique<Timeline>(*device);
    scheduled.push_back(scheduled_run(*device, host, options, timeline.get()));
  }
  if (timeline != nullptr) {
    timeline->drain();
    std::ofstream(options.trace) << timeline->chrome_trace();
  }
  const double compute_s = options.layers * options.layer_ms / 1e3;
  const json found{{"device", device->info().hardware},
                   {"layers", options.layers},
                   {"compute_s", compute_s},
                   {"weights_mib", options.weights_mib},
                   {"kv_mib", options.kv_mib},
                   {"stored_mib", options.stored_mib},
                   {"stored_every", options.stored_every},
                   {"plain_stalled_s", plain},
                   {"scheduled_stalled_s", scheduled},
                   {"median_plain_s", median(plain)},
                   {"median_scheduled_s", median(scheduled)}};
  if (options.as_json) {
    fmt::print("{}\n", found.dump(1));
  } else {
    fmt::print("compute {:.2f} s; waits: plain queues {:.3f} s, scheduled {:.3f} s\n", compute_s,
               median(plain), median(scheduled));
  }
  return 0;
}

}  // namespace
}  // namespace spillway

int main(int argc, char** argv) { return spillway::run_main(argc, argv); }
