// SPDX-License-Identifier: Apache-2.0
// What layers whose KV takes turns bring (Pie, 5): requests that KV memory limits, on a host that
// plays an accelerator with a GH200's ratio of link to memory. bench/pie_figures.py draws what it
// prints: one JSON object for each run.
//
// The accelerator's ops take the time they are given, mostly asleep, so that the figures are about
// waiting and room, and little about this machine's cores.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "base/stopwatch.h"
#include "cpu/cpu_device.h"
#include "cpu/emulated_accelerator.h"
#include "engine/engine.h"
#include "model/weight_slots.h"
#include "runtime/weight_mover.h"

namespace spillway {
namespace {

using nlohmann::json;

struct Options {
  std::vector<std::string> workloads = {"sharegpt", "alpaca", "prompts", "answers"};
  std::vector<int> turning = {0, 12, 18, 22, 26, 30, 34, 38};
  bool adapts = false;
  bool disturbed = false;
  double warm_up_s = 3, seconds = 6;
  int blocks = 128;  // of KV on the accelerator, in each layer
  int spare = kSpareBuffers;
  int layer_us = 600;
  double kv_gb_per_s = 6.6;
  double link_share = 0.1;  // of that: 419 GB/s beside 4 TB/s
  int max_sequences = 256;
};

constexpr int kLayers = 48;

ModelSpec small_spec() {
  ModelSpec spec;
  spec.name = "pie-sweep";
  spec.family = "llama";
  spec.vocab_size = 64;
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

// Mean tokens of prompts and answers, a quarter of what the data sets have; lengths spread as
// log-normal ones do.
GenerationRequest draw_request(const std::string& workload, std::mt19937& random) {
  static const std::map<std::string, std::pair<double, double>> kMeans = {
      {"sharegpt", {40, 84}}, {"alpaca", {5, 15}}, {"prompts", {100, 25}}, {"answers", {10, 150}}};
  const auto [prompt, answer] = kMeans.at(workload);
  const auto length = [&](double mean) {
    constexpr double kSpread = 0.6;
    std::lognormal_distribution<double> around(std::log(mean) - kSpread * kSpread / 2, kSpread);
    return std::clamp(static_cast<int>(around(random)), 1, 400);
  };
  GenerationRequest request;
  request.prompt.resize(static_cast<size_t>(length(prompt)));
  for (TokenId& id : request.prompt) id = static_cast<TokenId>(random() % 64);
  request.max_tokens = length(answer);
  return request;
}

class Bench {
 public:
  explicit Bench(const Options& options)
      : options_(options), accelerator_(accelerator_of(options)), model_(small_model()) {
    weights_ = load_weights(accelerator_, model_, {}, {});
  }

  // `turning` < 0: it finds them itself.
  json run(const std::string& workload, int turning, bool disturbed) {
    const bool adapts = turning < 0;
    KvCache kv(accelerator_, host_,
               {model_.spec.layers, model_.spec.kv_heads, model_.spec.head_dim, KvType::kF16},
               {.device_blocks = options_.blocks,
                .most_turning = kLayers - 8,
                .spare_buffers = options_.spare});
    Decoder decoder(accelerator_, model_.spec, weights_, {.max_tokens = 512, .host = &host_});
    Engine engine(decoder, kv, nullptr,
                  {.admission = {.max_sequences = options_.max_sequences}, .adapts_turns = adapts});
    if (!adapts) engine.change_turns(turning);
    std::mt19937 random(1);
    const auto sink = [](const GenerationEvent&) {};
    const auto step = [&] {
      while (engine.state().waiting < 64) engine.submit(draw_request(workload, random));
      engine.step(sink);
    };
    for (const Stopwatch watch; watch.seconds() < options_.warm_up_s;) step();
    engine.take_traffic();
    const EngineStats before = engine.stats();
    json series = json::array();
    const Stopwatch watch;
    double told_s = 0;
    int64_t told = before.generated_tokens;
    while (watch.seconds() < options_.seconds) {
      // The bus is half of what it was in every other quarter of the time.
      const int quarter = static_cast<int>(4 * watch.seconds() / options_.seconds);
      accelerator_.set_link_share(disturbed && quarter % 2 == 1 ? 0.5 : 1);
      step();
      if (watch.seconds() - told_s < 0.25) continue;
      const int64_t tokens = engine.stats().generated_tokens;
      series.push_back(
          {{"s", watch.seconds()},
           {"tokens_per_s", static_cast<double>(tokens - told) / (watch.seconds() - told_s)},
           {"turning", kv.layers().turning()}});
      told = tokens;
      told_s = watch.seconds();
    }
    const double seconds = watch.seconds();
    accelerator_.set_link_share(1);
    engine.take_traffic();
    const EngineStats& after = engine.stats();
    const auto steps = static_cast<double>(after.steps - before.steps);
    json out = {
        {"workload", workload},
        {"kind", adapts ? "auto" : "fixed"},
        {"turning", kv.layers().turning()},
        {"spare", options_.spare},
        {"blocks", options_.blocks},
        {"expansion", engine.state().kv_expansion},
        {"disturbed", disturbed},
        {"tokens_per_s",
         static_cast<double>(after.generated_tokens - before.generated_tokens) / seconds},
        {"step_ms", seconds / steps * 1e3},
        {"waited_share", (after.turn_waited_s - before.turn_waited_s) / seconds},
        {"sequences", static_cast<double>(after.sequence_steps - before.sequence_steps) / steps},
        {"preemptions", after.preemptions - before.preemptions},
        {"changes", after.turn_changes},
        {"turn_bytes_per_s", static_cast<double>(after.turn_bytes - before.turn_bytes) / seconds}};
    if (disturbed) out["series"] = std::move(series);
    return out;
  }

 private:
  static EmulatedAcceleratorOptions accelerator_of(const Options& options) {
    EmulatedAcceleratorOptions made;
    made.max_delay_us = 0;
    made.layer_us = options.layer_us;
    made.kv_bytes_per_s = static_cast<uint64_t>(options.kv_gb_per_s * 1e9);
    made.bytes_per_s = static_cast<uint64_t>(options.kv_gb_per_s * options.link_share * 1e9);
    return made;
  }

  Options options_;
  CpuDevice host_{CpuDeviceOptions{.threads = 1}};
  EmulatedAccelerator accelerator_;
  Model model_;
  ModelWeights weights_;
};

int run(const Options& options) {
  Bench bench(options);
  for (const std::string& workload : options.workloads) {
    const auto print = [](const json& line) {
      fmt::print("{}\n", line.dump());
      std::fflush(stdout);
    };
    for (const int turning : options.turning)
      print(bench.run(workload, turning, options.disturbed));
    if (options.adapts) print(bench.run(workload, -1, options.disturbed));
  }
  return 0;
}

}  // namespace
}  // namespace spillway

int main(int argc, char** argv) {
  spillway::Options options;
  CLI::App app("what layers whose KV takes turns bring, on an emulated accelerator");
  app.add_option("--workloads", options.workloads, "sharegpt, alpaca, prompts, answers")
      ->delimiter(',');
  app.add_option("--turning", options.turning, "layers that take turns, fixed")->delimiter(',');
  app.add_flag("--auto", options.adapts, "also as many as it finds itself");
  app.add_flag("--disturbed", options.disturbed, "half of the link is gone in every other quarter");
  app.add_option("--warm-up", options.warm_up_s, "seconds before each run");
  app.add_option("--seconds", options.seconds, "of each run");
  app.add_option("--blocks", options.blocks, "of KV on the accelerator");
  app.add_option("--spare", options.spare, "buffers that layers share");
  app.add_option("--layer-us", options.layer_us, "what a layer takes without KV");
  app.add_option("--kv-rate", options.kv_gb_per_s, "GB/s at which it reads KV");
  app.add_option("--link-share", options.link_share, "of the link, of that");
  CLI11_PARSE(app, argc, argv);
  return spillway::run(options);
}
