// SPDX-License-Identifier: Apache-2.0
// Measures what layer swapping brings (Pie, section 5): one run of requests that are limited by KV
// memory, on a host that emulates an accelerator with a GH200's ratio of link to memory bandwidth.
// Prints one JSON object. bench/pie_figures.py defines the runs, keeps their output, and draws it.
//
// Scheduler, engine, cache, copies and controller are the product's. Time is the accelerator's own
// (cpu/emulated_clock.h), so that a run is the same on every machine, however busy. With
// --real-time, ops sleep for their emulated time, and all work of the host counts, too.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "bench/engine_load.h"
#include "bench/median.h"
#include "cpu/cpu_device.h"
#include "cpu/emulated_accelerator.h"
#include "engine/engine.h"
#include "model/transformer_shape.h"
#include "model/weight_slots.h"
#include "runtime/weight_mover.h"

namespace spillway {
namespace {

using nlohmann::json;

struct Options {
  LoadOptions load;
  bool on_demand = false;
  bool disturbed = false;
  bool real_time = false;
  int blocks = 128;  // of KV on the accelerator, in each layer
  int spare = kSpareBuffers;
  int layer_us = 600;
  double kv_gb_per_s = 6.6;
  double link_share = 0.1;  // link rate as a share of that: 419 GB/s beside 4 TB/s
  int max_sequences = 256;
};

constexpr int kLayers = 48;
constexpr int kMostSwapped = kLayers - 8;
constexpr int kVocabulary = 64;

ModelSpec small_spec() {
  TransformerShape shape;
  shape.name = "pie-sweep";
  shape.family = "llama";
  shape.vocab_size = kVocabulary;
  shape.hidden = shape.embedding_dim = 32;
  shape.layers = kLayers;
  shape.heads = shape.kv_heads = 2;
  shape.head_dim = 16;
  shape.ffn = 32;
  shape.max_context = 1024;
  shape.rope.dims = shape.head_dim;
  for (const double f : base_inverse_frequencies(shape.rope))
    shape.rope.inverse_frequencies.push_back(static_cast<float>(f));
  validate(shape, shape.name);
  return make_spec(shape);
}

Model small_model() {
  Model model{small_spec(), {}};
  for (const WeightSlot& slot : weight_slots(model.spec))
    model.weights.push_back({slot, DType::kF32, std::nullopt});
  return model;
}

class Bench {
 public:
  explicit Bench(const Options& options)
      : options_(options),
        emulated_(options.real_time ? nullptr : std::make_shared<EmulatedClock>()),
        clock_(emulated_ ? clock_of(emulated_) : machine_clock()),
        accelerator_(accelerator_of(options, emulated_)),
        model_(small_model()),
        weights_(load_weights(accelerator_, model_, {}, {})),
        kv_(accelerator_, host_, kv_shapes(model_.spec.states, KvType::kF16),
            {.device_blocks = options.blocks,
             .most_swapped = kMostSwapped,
             .spare_buffers = options.spare}),
        decoder_(accelerator_, model_.spec, weights_,
                 {.max_tokens = 512, .host = &host_, .overlap = !options.on_demand}),
        engine_(decoder_, kv_, nullptr,
                {.admission = {.max_sequences = options.max_sequences},
                 .adapts_swapped_layers = options.load.adapts_swapped_layers(),
                 .clock = clock_.now_s}),
        load_(engine_, kv_, kVocabulary, options.load, clock_,
              {.before_step = [this](double counted_s) { disturb(counted_s); }}) {}

  json run() {
    load_.warm_up();
    const LoadFigures figures = load_.measure();
    json out = load_.report(figures);
    out["median_step_ms"] = median(figures.step_s) * 1e3;
    if (options_.disturbed || options_.load.adapts_swapped_layers()) out["series"] = figures.series;
    return out;
  }

 private:
  static EmulatedAcceleratorOptions accelerator_of(const Options& options,
                                                   std::shared_ptr<EmulatedClock> clock) {
    EmulatedAcceleratorOptions made;
    made.max_delay_us = 0;
    made.layer_us = options.layer_us;
    made.kv_bytes_per_s = static_cast<uint64_t>(options.kv_gb_per_s * 1e9);
    made.bytes_per_s = static_cast<uint64_t>(options.kv_gb_per_s * options.link_share * 1e9);
    made.clock = std::move(clock);
    return made;
  }
  static LoadClock clock_of(const std::shared_ptr<EmulatedClock>& emulated) {
    return {.now_s = [emulated] { return emulated->now_s(); },
            .pass_until = [emulated](double at_s) { emulated->pass_until(at_s); }};
  }

  // Simulates other users that take half of the bus in every other quarter of the time.
  void disturb(double counted_s) {
    const int quarter = static_cast<int>(4 * counted_s / options_.load.seconds);
    accelerator_.set_link_share(options_.disturbed && quarter % 2 == 1 ? 0.5 : 1);
  }

  Options options_;
  std::shared_ptr<EmulatedClock> emulated_;  // null: in real time
  LoadClock clock_;
  CpuDevice host_{CpuDeviceOptions{.threads = 1}};
  EmulatedAccelerator accelerator_;
  Model model_;
  ModelWeights weights_;
  KvCache kv_;
  Decoder decoder_;
  Engine engine_;
  EngineLoad load_;
};

}  // namespace
}  // namespace spillway

int main(int argc, char** argv) {
  spillway::Options options;
  CLI::App app("requests that KV memory limits, on an emulated accelerator");
  app.add_option("--requests", options.load.requests,
                 "lines of three numbers: seconds, tokens of a prompt, tokens of its answer")
      ->required();
  app.add_flag("--saturate", options.load.saturates, "some always wait, whatever the seconds say");
  app.add_option("--turning", options.load.swapped_layers,
                 "layers that take turns; auto: as many as it finds");
  app.add_flag("--on-demand", options.on_demand, "a layer comes when it is needed, not ahead");
  app.add_flag("--disturbed", options.disturbed, "half of the link is gone in every other quarter");
  app.add_flag("--real-time", options.real_time, "by this machine's clock");
  app.add_option("--warm-up", options.load.warm_up_s, "seconds before what counts");
  app.add_option("--seconds", options.load.seconds, "that count");
  app.add_option("--steps", options.load.steps, "that count, instead");
  app.add_option("--blocks", options.blocks, "of KV on the accelerator");
  app.add_option("--max-sequences", options.max_sequences, "at work at once");
  app.add_option("--spare", options.spare, "buffers that layers share");
  app.add_option("--layer-us", options.layer_us, "what a layer takes without KV");
  app.add_option("--kv-rate", options.kv_gb_per_s, "GB/s at which it reads KV");
  app.add_option("--link-share", options.link_share, "of the link, of that");
  app.add_option("--seed", options.load.seed, "of the tokens");
  CLI11_PARSE(app, argc, argv);
  try {
    fmt::print("{}\n", spillway::Bench(options).run().dump());
  } catch (const std::exception& error) {
    fmt::print(stderr, "pie_sweep: {}\n", error.what());
    return 1;
  }
  return 0;
}
