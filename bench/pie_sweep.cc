// SPDX-License-Identifier: Apache-2.0
// What layers whose KV takes turns bring (Pie, 5): one run of requests that KV memory limits, on a
// host that plays an accelerator with a GH200's ratio of link to memory. Prints one JSON object.
// bench/pie_figures.py says which runs there are, keeps what they print, and draws it.
//
// Scheduler, engine, cache, copies and controller are the product's. Time is the accelerator's own
// (cpu/emulated_clock.h), so that a run is the same on every machine, however busy; with
// --real-time ops sleep as long as they are said to take, and all that the host does counts.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/stopwatch.h"
#include "bench/arrivals.h"
#include "bench/median.h"
#include "cpu/cpu_device.h"
#include "cpu/emulated_accelerator.h"
#include "engine/engine.h"
#include "model/weight_slots.h"
#include "runtime/weight_mover.h"

namespace spillway {
namespace {

using nlohmann::json;

struct Options {
  std::string requests;       // file
  std::string turning = "0";  // layers, or "auto"
  bool on_demand = false;
  bool saturates = false;
  bool disturbed = false;
  bool real_time = false;
  double warm_up_s = 10, seconds = 30;
  int steps = 0;     // instead of these seconds
  int blocks = 128;  // of KV on the accelerator, in each layer
  int spare = kSpareBuffers;
  int layer_us = 600;
  double kv_gb_per_s = 6.6;
  double link_share = 0.1;  // of that: 419 GB/s beside 4 TB/s
  int max_sequences = 256;
  uint32_t seed = 1;
};

constexpr int kLayers = 48;
constexpr int kMostTurning = kLayers - 8;
constexpr int kVocabulary = 64;
constexpr int kAlwaysWaiting = 64;  // requests, where they saturate
constexpr double kTellEvery = 0.5;  // seconds

ModelSpec small_spec() {
  ModelSpec spec;
  spec.name = "pie-sweep";
  spec.family = "llama";
  spec.vocab_size = kVocabulary;
  spec.hidden = spec.embedding_dim = 32;
  spec.layers = kLayers;
  spec.heads = spec.kv_heads = 2;
  spec.head_dim = 16;
  spec.ffn = 32;
  spec.max_context = 1024;
  spec.rope.dims = spec.head_dim;
  for (const double f : base_inverse_frequencies(spec.rope))
    spec.rope.inverse_frequencies.push_back(static_cast<float>(f));
  validate(spec, spec.name);
  return spec;
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
        clock_(options.real_time ? nullptr : std::make_shared<EmulatedClock>()),
        accelerator_(accelerator_of(options, clock_)),
        model_(small_model()),
        weights_(load_weights(accelerator_, model_, {}, {})),
        kv_(accelerator_, host_,
            {model_.spec.layers, model_.spec.kv_heads, model_.spec.head_dim, KvType::kF16},
            {.device_blocks = options.blocks,
             .most_turning = kMostTurning,
             .spare_buffers = options.spare}),
        decoder_(accelerator_, model_.spec, weights_,
                 {.max_tokens = 512, .host = &host_, .overlap = !options.on_demand}),
        engine_(decoder_, kv_, nullptr,
                {.admission = {.max_sequences = options.max_sequences},
                 .adapts_turns = options.turning == "auto",
                 .clock = [this] { return now_s(); }}),
        arrivals_(options.requests, kVocabulary, options.seed) {}

  json run() {
    const bool adapts = options_.turning == "auto";
    if (!adapts) engine_.change_turns(std::stoi(options_.turning));
    begun_s_ = now_s();
    while (passed_s() < options_.warm_up_s) step();
    engine_.take_traffic();
    const EngineStats before = engine_.stats();
    waiting_s_ = running_s_ = 0;
    step_s_.clear();
    const double from_s = passed_s();
    json series = json::array();
    double told_s = from_s;
    int64_t told = before.generated_tokens;
    while (options_.steps > 0 ? engine_.stats().steps < before.steps + options_.steps
                              : passed_s() < from_s + options_.seconds) {
      // Others have half of the bus in every other quarter of the time.
      const int quarter = static_cast<int>(4 * (passed_s() - from_s) / options_.seconds);
      accelerator_.set_link_share(options_.disturbed && quarter % 2 == 1 ? 0.5 : 1);
      step();
      if (passed_s() - told_s < kTellEvery) continue;
      const int64_t tokens = engine_.stats().generated_tokens;
      series.push_back(
          {{"s", passed_s() - from_s},
           {"tokens_per_s", static_cast<double>(tokens - told) / (passed_s() - told_s)},
           {"turning", kv_.layers().turning()}});
      told = tokens;
      told_s = passed_s();
    }
    const double seconds = passed_s() - from_s;
    engine_.take_traffic();
    const EngineStats& after = engine_.stats();
    const auto steps = static_cast<double>(after.steps - before.steps);
    const auto tokens = static_cast<double>(after.generated_tokens - before.generated_tokens);
    json out = {
        {"turning", kv_.layers().turning()},
        {"expansion", engine_.state().kv_expansion},
        {"blocks", options_.blocks},
        {"expanded_blocks", kv_.device_blocks()},
        {"seconds", seconds},
        {"tokens_per_s", tokens / seconds},
        {"step_ms", seconds / steps * 1e3},
        {"median_step_ms", median(step_s_) * 1e3},
        {"waited_share", (after.turn_waited_s - before.turn_waited_s) / seconds},
        {"sequences", static_cast<double>(after.sequence_steps - before.sequence_steps) / steps},
        {"preemptions", after.preemptions - before.preemptions},
        {"changes", after.turn_changes},
        {"turn_bytes_per_s", static_cast<double>(after.turn_bytes - before.turn_bytes) / seconds},
        // As the paper has it (5.1): all the time that requests wait, and are at work, by tokens.
        {"queueing_ms_per_token", waiting_s_ / tokens * 1e3},
        {"compute_ms_per_token", running_s_ / tokens * 1e3}};
    if (options_.disturbed || adapts) out["series"] = std::move(series);
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
  double now_s() const { return clock_ != nullptr ? clock_->now_s() : watch_.seconds(); }
  double passed_s() const { return now_s() - begun_s_; }

  void submit_those_due() {
    if (options_.saturates) {
      while (engine_.state().waiting < kAlwaysWaiting) engine_.submit(arrivals_.take().request);
      return;
    }
    while (arrivals_.next_at_s() && *arrivals_.next_at_s() <= passed_s())
      engine_.submit(arrivals_.take().request);
  }
  void step() {
    submit_those_due();
    const double before_s = now_s();
    if (!engine_.has_requests()) {
      SPW_CHECK(arrivals_.next_at_s(), kInvalidArgument,
                "{}: the last request came at {:.1f} s, before the run's end", options_.requests,
                passed_s());
      if (clock_ != nullptr) {
        clock_->pass_until(begun_s_ + *arrivals_.next_at_s());
      } else {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      return;
    }
    const EngineState state = engine_.state();
    const int64_t worked = engine_.stats().sequence_steps;
    engine_.step([](const GenerationEvent&) {});
    const double took_s = now_s() - before_s;
    step_s_.push_back(took_s);
    const int64_t at_work = engine_.stats().sequence_steps - worked;
    running_s_ += took_s * static_cast<double>(at_work);
    waiting_s_ += took_s * static_cast<double>(state.waiting + state.running - at_work);
  }

  Options options_;
  std::shared_ptr<EmulatedClock> clock_;
  Stopwatch watch_;
  CpuDevice host_{CpuDeviceOptions{.threads = 1}};
  EmulatedAccelerator accelerator_;
  Model model_;
  ModelWeights weights_;
  KvCache kv_;
  Decoder decoder_;
  Engine engine_;
  Arrivals arrivals_;
  double begun_s_ = 0;
  double waiting_s_ = 0, running_s_ = 0;  // of requests
  std::vector<double> step_s_;
};

}  // namespace
}  // namespace spillway

int main(int argc, char** argv) {
  spillway::Options options;
  CLI::App app("requests that KV memory limits, on an emulated accelerator");
  app.add_option("--requests", options.requests,
                 "lines of three numbers: seconds, tokens of a prompt, tokens of its answer")
      ->required();
  app.add_flag("--saturate", options.saturates, "some always wait, whatever the seconds say");
  app.add_option("--turning", options.turning, "layers that take turns; auto: as many as it finds");
  app.add_flag("--on-demand", options.on_demand, "a layer comes when it is needed, not ahead");
  app.add_flag("--disturbed", options.disturbed, "half of the link is gone in every other quarter");
  app.add_flag("--real-time", options.real_time, "by this machine's clock");
  app.add_option("--warm-up", options.warm_up_s, "seconds before what counts");
  app.add_option("--seconds", options.seconds, "that count");
  app.add_option("--steps", options.steps, "that count, instead");
  app.add_option("--blocks", options.blocks, "of KV on the accelerator");
  app.add_option("--max-sequences", options.max_sequences, "at work at once");
  app.add_option("--spare", options.spare, "buffers that layers share");
  app.add_option("--layer-us", options.layer_us, "what a layer takes without KV");
  app.add_option("--kv-rate", options.kv_gb_per_s, "GB/s at which it reads KV");
  app.add_option("--link-share", options.link_share, "of the link, of that");
  app.add_option("--seed", options.seed, "of the tokens");
  CLI11_PARSE(app, argc, argv);
  try {
    fmt::print("{}\n", spillway::Bench(options).run().dump());
  } catch (const std::exception& error) {
    fmt::print(stderr, "pie_sweep: {}\n", error.what());
    return 1;
  }
  return 0;
}
