// SPDX-License-Identifier: Apache-2.0
// Compares the estimated time of a step with swapped layers (plan/step_prices.h, plan/simulate.h)
// with the time on a host that emulates an accelerator, for several numbers of swapped layers and
// link rates. Prints one JSON object; the exit code is 1 if an estimate is off by more than --bar.
//
// All of the machine is known except the time of a layer besides its KV, which is taken from steps
// without swapped layers; what swapping adds is the estimate's. Time is the accelerator's own
// (cpu/emulated_clock.h). With --real-time it is this machine's, and all work of the host counts.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "bench/median.h"
#include "cpu/cpu_device.h"
#include "cpu/emulated_accelerator.h"
#include "model/transformer_shape.h"
#include "model/weight_slots.h"
#include "plan/step_prices.h"
#include "plan/weight_homes.h"
#include "runtime/decoder.h"
#include "runtime/weight_mover.h"

namespace spillway {
namespace {

using nlohmann::json;

struct Options {
  std::vector<int> swapped = {6, 12, 24, 40};
  std::vector<double> link_shares = {0.02, 0.05, 0.1, 0.3};  // of the rate at which KV is read
  int sequences = 32;
  int context = 256;  // tokens of each sequence before the measured steps
  int steps = 12;     // measured steps
  int layer_us = 600;
  double kv_gb_per_s = 6.6;
  double bar = 0.15;
  bool real_time = false;
};

constexpr int kLayers = 48;

Model small_model() {
  TransformerShape shape;
  shape.name = "swap-estimate";
  shape.family = "llama";
  shape.vocab_size = 64;
  shape.hidden = shape.embedding_dim = 32;
  shape.layers = kLayers;
  shape.heads = shape.kv_heads = 2;
  shape.head_dim = 16;
  shape.ffn = 32;
  shape.max_context = 1024;
  set_plain_rope(shape.rope, 10000, shape.head_dim);
  validate(shape, shape.name);
  Model model{make_spec(shape), {}};
  for (const WeightSlot& slot : weight_slots(model.spec))
    model.weights.push_back({slot, DType::kF32, std::nullopt});
  return model;
}

// One configuration of steps.
struct Cell {
  int swapped = 0;
  double link_share = 1;
  bool overlap = true;
  int micro_batch = 0;
};

class Bench {
 public:
  explicit Bench(const Options& options) : options_(options), model_(small_model()) {}

  json run() {
    json cells = json::array();
    double worst = 0;
    for (const bool overlap : {true, false}) {
      for (const int micro_batch : {0, options_.sequences / 2}) {
        const Cell resident{.overlap = overlap, .micro_batch = micro_batch};
        const double without_s = measure(resident).seconds;
        const double launch_s = launch_seconds(resident, without_s);
        for (const double share : options_.link_shares) {
          for (const int swapped : options_.swapped) {
            const Cell cell{swapped, share, overlap, micro_batch};
            const Measured measured = measure(cell);
            const double estimated_s = estimate(cell, launch_s);
            const double ratio = estimated_s / measured.seconds;
            worst = std::max(worst, std::abs(ratio - 1));
            cells.push_back({{"swapped_layers", swapped},
                             {"link_gb_per_s", options_.kv_gb_per_s * share},
                             {"overlap", overlap},
                             {"micro_batch", micro_batch},
                             {"without_ms", without_s * 1e3},
                             {"measured_ms", measured.seconds * 1e3},
                             {"estimated_ms", estimated_s * 1e3},
                             {"stalled_share", measured.stalled_s / measured.seconds},
                             {"ratio", ratio}});
          }
        }
      }
    }
    return {{"layers", kLayers},
            {"sequences", options_.sequences},
            {"context", options_.context},
            {"layer_us", options_.layer_us},
            {"kv_gb_per_s", options_.kv_gb_per_s},
            {"clock", options_.real_time ? "the machine's" : "the accelerator's own"},
            {"cells", cells},
            {"largest_error", worst}};
  }

 private:
  struct Measured {
    double seconds = 0, stalled_s = 0;  // per step
  };

  int64_t blocks_each() const {
    return blocks_for_tokens(options_.context + kKvBlockTokens + kWarmUp + options_.steps);
  }
  // Sequences end anywhere in their last block, as on a server.
  int start_of(int sequence) const { return options_.context + sequence % kKvBlockTokens; }
  double keys() const {
    double all = 0;
    for (int i = 0; i < options_.sequences; ++i)
      all += start_of(i) + kWarmUp + (options_.steps + 1) / 2.0;
    return all / options_.sequences;
  }

  Measured measure(const Cell& cell) const {
    const auto clock = options_.real_time ? nullptr : std::make_shared<EmulatedClock>();
    EmulatedAcceleratorOptions made;
    made.max_delay_us = 0;
    made.layer_us = options_.layer_us;
    made.kv_bytes_per_s = static_cast<uint64_t>(options_.kv_gb_per_s * 1e9);
    made.bytes_per_s = static_cast<uint64_t>(options_.kv_gb_per_s * cell.link_share * 1e9);
    made.clock = clock;
    EmulatedAccelerator accelerator(made);
    CpuDevice host(CpuDeviceOptions{.threads = 1});
    const ModelWeights weights = load_weights(accelerator, model_, {}, {});
    KvCache kv(accelerator, host, kv_shapes(model_.spec.states, KvType::kF16),
               {.device_blocks = static_cast<int32_t>(blocks_each()) * options_.sequences,
                .most_swapped = cell.swapped});
    Decoder decoder(accelerator, model_.spec, weights,
                    {.max_tokens = options_.sequences,
                     .micro_sequences = cell.micro_batch,
                     .host = &host,
                     .overlap = cell.overlap});
    if (cell.swapped > 0) decoder.change_swapped_layers(kv, cell.swapped);
    const auto now_s = [&] {
      if (clock != nullptr) return clock->now_s();
      return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
          .count();
    };
    // The contents of the blocks do not affect the time, so no prompt is computed.
    std::vector<std::vector<BlockId>> tables;
    for (int i = 0; i < options_.sequences; ++i)
      tables.push_back(kv.blocks_in_order(i * blocks_each(), blocks_each()));
    constexpr int32_t kToken[1] = {1};
    std::vector<double> seconds;
    for (int step = 0; step < kWarmUp + options_.steps; ++step) {
      if (step == kWarmUp) decoder.take_stats();
      std::vector<StepSequence> batch;
      for (int i = 0; i < options_.sequences; ++i)
        batch.push_back({.tokens = kToken,
                         .start = start_of(i) + step,
                         .block_table = tables[static_cast<size_t>(i)],
                         .generates = true});
      const double begin_s = now_s();
      decoder.step(kv, batch);
      accelerator.synchronize();
      if (step >= kWarmUp) seconds.push_back(now_s() - begin_s);
    }
    return {median(seconds), decoder.take_stats().layer_swaps.waited_s / options_.steps};
  }

  double estimate(const Cell& cell, double launch_s) const {
    const double kv_rate = options_.kv_gb_per_s * 1e9;
    Hardware hardware;
    // Costs that are negligible here are made almost zero.
    hardware.gpu = Processor{.memory_bytes = uint64_t{1} << 34,
                             .read_bytes_per_s = 1e15,
                             .flop_per_s = 1e18,
                             .launch_s = launch_s,
                             .attention = {{KvType::kF16, RateCurve(kv_rate)}}};
    hardware.host = {
        .memory_bytes = uint64_t{1} << 34, .read_bytes_per_s = 1e10, .flop_per_s = 1e10};
    hardware.to_device = hardware.to_host = RateCurve(kv_rate * cell.link_share);
    DeviceTraits traits;
    traits.host_visible = false;
    traits.memory_bytes = hardware.gpu->memory_bytes;
    traits.activation_types.fill(DType::kF32);
    Plan plan;
    plan.overlap = cell.overlap;
    plan.micro_batch = cell.micro_batch;
    const RunSize run{.tokens = blocks_each() * kKvBlockTokens,
                      .sequences = options_.sequences,
                      .micro_tokens = options_.sequences,
                      .most_swapped = cell.swapped,
                      .swapped_layers = cell.swapped};
    const RunLayout layout = footprint(model_, plan, run, traits).layout;
    const StepPrices prices(hardware, model_, weight_homes(false, model_, plan.weight_plan()), plan,
                            layout, {.sequences = options_.sequences, .keys = keys()});
    return simulate_step(prices).seconds;
  }
  // Returns the time of an op with which steps without swapped layers take as long as measured.
  double launch_seconds(const Cell& resident, double measured_s) const {
    const double none = estimate(resident, 0);
    return (measured_s - none) / (estimate(resident, 1) - none);
  }

  static constexpr int kWarmUp = 4;
  Options options_;
  Model model_;
};

}  // namespace
}  // namespace spillway

int main(int argc, char** argv) {
  spillway::Options options;
  CLI::App app("estimates of steps with swapped layers, on an emulated accelerator");
  app.add_option("--swapped", options.swapped, "numbers of swapped layers, of 48")->delimiter(',');
  app.add_option("--link-shares", options.link_shares, "rates of the link, of --kv-rate")
      ->delimiter(',');
  app.add_option("--sequences", options.sequences, "that generate");
  app.add_option("--context", options.context, "tokens of each");
  app.add_option("--steps", options.steps, "that count");
  app.add_option("--layer-us", options.layer_us, "what a layer takes without KV");
  app.add_option("--kv-rate", options.kv_gb_per_s, "GB/s at which it reads KV");
  app.add_option("--bar", options.bar, "largest error");
  app.add_flag("--real-time", options.real_time, "by this machine's clock");
  CLI11_PARSE(app, argc, argv);
  try {
    const nlohmann::json out = spillway::Bench(options).run();
    fmt::print("{}\n", out.dump(1));
    return out["largest_error"].get<double>() > options.bar ? 1 : 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "swap_estimate: {}\n", error.what());
    return 1;
  }
}
