// SPDX-License-Identifier: Apache-2.0
// pin_strategies: measures a linear layer whose weights are in host memory that is not all pinned,
// shared by CPU and link in the ways of HeteGen's figure 5. Prints for each way the time of a
// layer, and the rates of CPU and link meanwhile.
//   a  copied by the driver from pageable memory
//   b  each part pinned before its copy and unpinned after it
//   c  copied to pinned staging memory by extra threads, while the part before is on the link
//   d  all pinned once, as spillway does if the system allows it
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "base/thread_pool.h"
#include "cli/local_devices.h"
#include "memory/pinned_buffer.h"
#include "tensor/random_fill.h"

namespace spillway {
namespace {

using Clock = std::chrono::steady_clock;
using nlohmann::json;

struct Options {
  int64_t rows = 20480, cols = 5120;  // the first matrix of OPT-13B's MLP
  double cpu_share = 0.65;
  int layers = 8;   // copies of the layer, used in rotation
  int repeat = 40;  // number of layers in a measurement
  int copiers = 4;  // threads that fill staging memory
  std::string device = "cuda";
  bool as_json = false;
};

constexpr size_t kPiece = size_t{16} << 20;

class Strategies {
 public:
  explicit Strategies(const Options& options)
      : options_(options),
        device_(local_devices().make({.name = options.device})),
        host_(local_devices().make({.name = "cpu"})),
        copiers_(options.copiers) {
    const auto bytes = static_cast<size_t>(2 * options.rows * options.cols);
    for (int i = 0; i < options.layers; ++i) {
      PinnedBuffer& layer = layers_.emplace_back(*host_, *device_, bytes, MemoryTag::kWeights,
                                                 PinnedBuffer::Pin::kNever);
      if (i == 0) {
        fill_random(DType::kF16, layer.data(), options.rows * options.cols, 1, 0.02F);
      } else {
        std::memcpy(layer.data(), layers_[0].data(), bytes);
      }
    }
    x_ = host_->allocate(static_cast<size_t>(4 * options.cols), MemoryTag::kActivations);
    out_ = host_->allocate(static_cast<size_t>(4 * options.rows), MemoryTag::kActivations);
    fill_random(DType::kF32, x_.data(), options.cols, 2, 0.5F);
    on_device_ = device_->allocate(bytes, MemoryTag::kStaging);
    stream_ = device_->make_stream();
    for (Stage& stage : stages_) {
      stage.memory = PinnedBuffer(*host_, *device_, kPiece, MemoryTag::kStaging);
      stage.copied = device_->make_event();
    }
    cut_ = static_cast<int64_t>(options.cpu_share * static_cast<double>(options.rows)) / 16 * 16;
  }

  json run(const std::string& name, const std::function<void(int)>& bring) {
    layer(0, bring);
    const auto start = Clock::now();
    cpu_s_ = link_s_ = 0;
    for (int i = 0; i < options_.repeat; ++i) layer(i % options_.layers, bring);
    const double seconds =
        std::chrono::duration<double>(Clock::now() - start).count() / options_.repeat;
    const double row = 2.0 * static_cast<double>(options_.cols),
                 of_cpu = row * static_cast<double>(cut_),
                 of_link = row * static_cast<double>(options_.rows - cut_);
    json out{{"way", name},
             {"layer_ms", seconds * 1e3},
             {"weights_gb_per_s", (of_cpu + of_link) / seconds / 1e9},
             {"cpu_gb_per_s", of_cpu * options_.repeat / cpu_s_ / 1e9},
             {"link_gb_per_s", of_link * options_.repeat / link_s_ / 1e9},
             {"cpu_busy", cpu_s_ / options_.repeat / seconds},
             {"link_busy", link_s_ / options_.repeat / seconds}};
    return out;
  }

  json all() {
    json found = json::array();
    found.push_back(
        run("a: copied from where it lies", [&](int i) { copy(source(i), link_bytes()); }));
    found.push_back(run("b: pinned before each copy", [&](int i) {
      std::byte* const from = page_of(source(i));
      const size_t bytes =
          layers_[static_cast<size_t>(i)].data() + layers_[static_cast<size_t>(i)].bytes() - from;
      const bool pinned = device_->try_pin(from, bytes);
      copy(source(i), link_bytes());
      if (pinned) device_->unpin(from);
    }));
    found.push_back(
        run("c: staged beside it", [&](int i) { copy_staged(source(i), link_bytes()); }));
    for (PinnedBuffer& layer : layers_) device_->try_pin(layer.data(), layer.bytes());
    found.push_back(run("d: pinned once", [&](int i) { copy(source(i), link_bytes()); }));
    for (PinnedBuffer& layer : layers_) device_->unpin(layer.data());
    return found;
  }

 private:
  const std::byte* source(int layer) const {
    return layers_[static_cast<size_t>(layer)].data() + 2 * cut_ * options_.cols;
  }
  static std::byte* page_of(const std::byte* at) {
    return reinterpret_cast<std::byte*>(reinterpret_cast<uintptr_t>(at) / 4096 * 4096);
  }
  size_t link_bytes() const {
    return static_cast<size_t>(2 * (options_.rows - cut_) * options_.cols);
  }

  // Computes the CPU's rows on a thread of their own while `bring` transfers the others, and waits
  // for both.
  void layer(int i, const std::function<void(int)>& bring) {
    std::jthread on_cpu([&] {
      const auto start = Clock::now();
      const WeightView w{DType::kF16, options_.rows, options_.cols,
                         layers_[static_cast<size_t>(i)].data()};
      host_->ops().linear(w.slice(0, cut_), {},
                          {DType::kF32, 1, options_.cols, options_.cols, x_.data()},
                          {DType::kF32, 1, cut_, cut_, out_.data()}, LinearMode::kStore);
      cpu_s_ += std::chrono::duration<double>(Clock::now() - start).count();
    });
    const auto start = Clock::now();
    bring(i);
    link_s_ += std::chrono::duration<double>(Clock::now() - start).count();
  }
  void copy(const std::byte* from, size_t bytes) {
    const CopyPiece piece{on_device_.data(), from, bytes};
    stream_->copy_to_device({&piece, 1});
    stream_->synchronize();
  }
  void copy_staged(const std::byte* from, size_t bytes) {
    size_t turn = 0;
    for (size_t done = 0; done < bytes; done += kPiece, ++turn) {
      Stage& stage = stages_[turn % stages_.size()];
      stage.copied->synchronize();
      const size_t count = std::min(kPiece, bytes - done);
      copiers_.parallel_for(static_cast<int64_t>(count), 1 << 20,
                            [&](int64_t begin, int64_t end, int /*worker*/) {
                              std::memcpy(stage.memory.data() + begin, from + done + begin,
                                          static_cast<size_t>(end - begin));
                            });
      const CopyPiece piece{on_device_.data() + done, stage.memory.data(), count};
      stream_->copy_to_device({&piece, 1});
      stream_->record(*stage.copied);
    }
    stream_->synchronize();
  }

  struct Stage {
    PinnedBuffer memory;
    std::unique_ptr<DeviceEvent> copied;
  };
  Options options_;
  std::unique_ptr<Device> device_, host_;
  ThreadPool copiers_;
  std::vector<PinnedBuffer> layers_;
  Buffer x_, out_, on_device_;
  std::array<Stage, 3> stages_;
  std::unique_ptr<DeviceStream> stream_;
  int64_t cut_ = 0;
  double cpu_s_ = 0, link_s_ = 0;
};

int run_main(int argc, char** argv) {
  Options options;
  CLI::App app("a linear layer in host memory that is not pinned, shared by CPU and link");
  app.add_option("--rows", options.rows)->capture_default_str();
  app.add_option("--cols", options.cols)->capture_default_str();
  app.add_option("--cpu-share", options.cpu_share)
      ->check(CLI::Range(0.01, 0.99))
      ->capture_default_str();
  app.add_option("--repeat", options.repeat)->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--copiers", options.copiers)->check(CLI::Range(1, 64))->capture_default_str();
  app.add_option("--device", options.device)->capture_default_str();
  app.add_flag("--json", options.as_json);
  CLI11_PARSE(app, argc, argv);
  const json found = Strategies(options).all();
  if (options.as_json) {
    fmt::print("{}\n", found.dump());
    return 0;
  }
  for (const json& way : found) {
    fmt::print(
        "{:<30} {:7.3f} ms a layer, weights at {:6.1f} GB/s; CPU {:6.1f} GB/s, {:3.0f}% busy; link "
        "{:5.1f} GB/s, {:3.0f}% busy\n",
        way["way"].get<std::string>(), way["layer_ms"].get<double>(),
        way["weights_gb_per_s"].get<double>(), way["cpu_gb_per_s"].get<double>(),
        way["cpu_busy"].get<double>() * 100, way["link_gb_per_s"].get<double>(),
        way["link_busy"].get<double>() * 100);
  }
  return 0;
}

}  // namespace
}  // namespace spillway

int main(int argc, char** argv) { return spillway::run_main(argc, argv); }
