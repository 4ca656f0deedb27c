// SPDX-License-Identifier: Apache-2.0
// gpu_ablation: measures what each GPU technique brings to decoding, by leaving it out.
//
// One process with one model runs the variants alternately, so that all see the same clocks and the
// same memory. A ratio compares two runs of the same round; the median of the ratios is printed.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "bench/median.h"
#include "cli/bench_run.h"
#include "cli/terminal_services.h"
#include "cuda/cuda_device.h"
#include "engine/model_run.h"
#include "engine/session.h"

namespace spillway {
namespace {

using nlohmann::json;

struct Variant {
  std::string name;
  CudaTechniques techniques;
};

std::vector<Variant> all_variants() {
  return {{"all", {}},
          {"persistent-step", {.persistent_step = false}},
          {"graphs", {.graphs = false}},
          {"overlapping-launches", {.overlapping_launches = false}},
          {"gemv", {.gemv = false}},
          {"flat-gemm", {.flat_gemm = false}},
          {"unified-maximum", {.unified_maximum = false}}};
}

// Score bounds for random weights: without bounds there is no unified maximum to leave out.
constexpr ScoreBounds kSmallScores = {.lowest_top = -1, .highest = 1};

struct Options {
  std::vector<std::string> models = {"dummy:llama-2-7b", "dummy:llama-2-7b:q4_0"};
  std::vector<int> batches = {1, 2, 8, 32};
  std::vector<std::string> without;  // empty: each of them
  int rounds = 10;
  int prompt_len = 64, gen_len = 64;
  std::string json_path;
};

std::vector<Variant> chosen_variants(const Options& options) {
  const std::vector<Variant> all = all_variants();
  if (options.without.empty()) return all;
  std::vector<Variant> chosen = {all.front()};
  for (const std::string& name : options.without) {
    const auto found = std::ranges::find(all, name, &Variant::name);
    SPW_CHECK(found != all.end(), kInvalidArgument, "no technique '{}'; see --help", name);
    chosen.push_back(*found);
  }
  return chosen;
}

// Returns the tokens/s of decoding, by variant and round.
std::vector<std::vector<double>> measure(Session& session, cuda::CudaDevice& device,
                                         const std::vector<Variant>& variants,
                                         const Options& options, int batch) {
  std::vector<std::vector<double>> speeds(variants.size());
  const std::vector<RequestLengths> requests(
      static_cast<size_t>(batch), {.prompt = options.prompt_len, .answer = options.gen_len});
  // A change of techniques discards recorded graphs; the warm-up run records them again.
  ModelRun model(session, {.admission = RunOrder::Admission::kWholeBlocks},
                 int64_t{options.prompt_len} + options.gen_len, batch);
  const BenchOrder order{.engine = model.options, .requests = requests, .warm_up = 1};
  const auto run = [&](const Variant& variant) {
    device.set_techniques(variant.techniques);
    const BenchRun measured = run_median(model.runner, order);
    return batch * static_cast<double>(options.gen_len - 1) / measured.decode.seconds;
  };
  for (int round = 0; round < options.rounds; ++round) {
    // Every other round runs backwards, so that no variant always follows the same one.
    for (size_t i = 0; i < variants.size(); ++i) {
      const size_t at = round % 2 == 0 ? i : variants.size() - 1 - i;
      speeds[at].push_back(run(variants[at]));
    }
  }
  device.set_techniques({});
  return speeds;
}

json ablate(const Options& options) {
  const std::vector<Variant> variants = chosen_variants(options);
  json cells = json::array();
  for (const std::string& model : options.models) {
    SessionOptions session_options;
    session_options.model = model;
    session_options.device = "cuda";
    Session session(session_options, terminal_services());
    const int most = std::ranges::max(options.batches);
    session.load({.tokens = int64_t{options.prompt_len} + options.gen_len, .sequences = most});
    auto& device = dynamic_cast<cuda::CudaDevice&>(*session.device);
    device.ops().set_score_bounds(&kSmallScores);
    for (const int batch : options.batches) {
      const auto speeds = measure(session, device, variants, options, batch);
      fmt::print("{}, {} sequences: {:.1f} tokens/s\n", model, batch, median(speeds[0]));
      json cell = {{"model", model}, {"sequences", batch}, {"all", speeds[0]}};
      for (size_t i = 1; i < variants.size(); ++i) {
        std::vector<double> gains;
        for (size_t round = 0; round < speeds[i].size(); ++round)
          gains.push_back(speeds[0][round] / speeds[i][round]);
        fmt::print("  {:<22} brings {:+6.1f}%  ({:.1f} without)\n", variants[i].name,
                   (median(gains) - 1) * 100, median(speeds[i]));
        cell["without"][variants[i].name] = {{"tokens_per_s", speeds[i]}, {"gain", median(gains)}};
      }
      std::fflush(stdout);
      cells.push_back(std::move(cell));
    }
  }
  return cells;
}

int main_of(int argc, char** argv) {
  Options options;
  CLI::App app(
      "What each technique of the GPU brings to decoding: with all of them and without "
      "one, in turns, in one process.");
  app.add_option("--models", options.models, "dummy:NAME[:TYPE], or files")->delimiter(',');
  app.add_option("--batches", options.batches, "sequences at once")->delimiter(',');
  app.add_option("--without", options.without,
                 "techniques to leave out, one at a time: persistent-step, graphs, "
                 "overlapping-launches, gemv, flat-gemm, unified-maximum (default: each)")
      ->delimiter(',');
  app.add_option("--rounds", options.rounds)->check(CLI::PositiveNumber);
  app.add_option("--prompt-len", options.prompt_len)->check(CLI::PositiveNumber);
  app.add_option("--gen-len", options.gen_len)->check(CLI::Range(2, 1 << 20));
  app.add_option("--json", options.json_path, "write all figures there");
  CLI11_PARSE(app, argc, argv);
  try {
    const json cells = ablate(options);
    if (!options.json_path.empty()) std::ofstream(options.json_path) << cells.dump(1) << "\n";
  } catch (const Error& error) {
    fmt::print(stderr, "gpu_ablation: {}\n", error.what());
    return 1;
  }
  return 0;
}

}  // namespace
}  // namespace spillway

int main(int argc, char** argv) { return spillway::main_of(argc, argv); }
