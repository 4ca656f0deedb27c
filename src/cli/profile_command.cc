// SPDX-License-Identifier: Apache-2.0
// spillway profile: measures the machine, or which kernels suit a model on it, and keeps the
// results.
#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <memory>
#include <optional>
#include <vector>

#include "base/cpu_load.h"
#include "base/error.h"
#include "base/log.h"
#include "base/plain_numbers.h"
#include "base/printable.h"
#include "cli/command_line.h"
#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/json_output.h"
#include "cli/profile_machine.h"
#include "cli/session_flags.h"
#include "cli/terminal.h"
#include "cli/terminal_services.h"
#include "cli/value_check.h"
#include "engine/engine_client.h"
#include "engine/model_run.h"
#include "engine/profile_splits.h"
#include "engine/sampler.h"
#include "engine/session.h"
#include "measure/measure_linear.h"
#include "measure/measure_scores.h"
#include "measure/tuning_file.h"

namespace spillway {
namespace {

using nlohmann::json;

struct ProfileOptions {
  std::vector<std::string> models;
  SessionOptions session;
  std::string output;
  double seconds = kProfileSeconds;
  bool softmax = false;
  bool json = false;
};

int64_t softmax_tokens(const ModelSpec& spec) { return std::min<int64_t>(384, spec.max_context); }

// Measures attention scores on text that the model generates: every model can, and it stands for
// real text.
ScoreBounds measure_softmax(Session& session) {
  constexpr int kFirstTokens = 16;
  const ModelSpec& spec = session.loaded->model.spec;
  const auto tokens = static_cast<int>(softmax_tokens(spec));
  ModelRun model(session, {.with_text = false}, tokens);
  std::vector<TokenId> text;
  {
    GenerationRequest request;
    for (int i = 0; i < kFirstTokens; ++i) {
      request.prompt.push_back(static_cast<TokenId>(counter_uniform(1, static_cast<uint64_t>(i)) *
                                                    static_cast<double>(spec.vocab_size)));
    }
    text = request.prompt;
    request.max_tokens = tokens - kFirstTokens;
    request.sampling.temperature = 1;
    EngineClient client(model.engine());
    client.submit(request);
    for (bool ended = false; !ended;) {
      for (const GenerationEvent& event : client.take()) {
        ended = event.finish.has_value();
        if (!event.error.empty()) throw Error(event.error_code, event.error);
        if (event.token) text.push_back(*event.token);
      }
      SPW_CHECK(!interrupted(), kCancelled, "stopped after {} of {} tokens", text.size(), tokens);
    }
  }
  const ScoreRange range = measure_scores(model.runner.decoder, model.runner.kv, text);
  return {range.lowest_top, range.highest};
}

// On a machine with separate GPU and host memory, measures how CPU and GPU best share the model's
// linear layers. The result is stored in the machine's file, which must exist.
std::vector<SplitCurve> measure_sharing(Session& session, const std::string& model) {
  if (session.device->host_visible() || session.device->info().unified_memory) return {};
  const auto path = try_default_hardware_path();
  auto known = try_measured_here(session.host().info(), &session.device->info());
  if (!path || !known || known->host.threads != session.host().info().threads) {
    log_warning(
        "how CPU and GPU share {} is not measured: this machine is not, with so many threads; "
        "spillway profile, then this again",
        printable(model));
    return {};
  }
  return profile_splits(session.host(), *session.device, session.loaded->model, model,
                        /*again=*/true, *known, *path, terminal_services());
}

// The measurements of all models.
struct Measured {
  TunedMachine machine = {};
  TuningTable table = {};
  std::vector<SplitCurve> splits = {};
};

// Loads a model and measures its shapes.
void measure_model(const ProfileOptions& options, const std::string& model, Measured& measured) {
  SessionOptions session_options = options.session;
  session_options.model = model;
  session_options.tuning.off = true;
  Session session(session_options, terminal_services());
  const int64_t tokens = softmax_tokens(session.loaded->model.spec);
  session.load({.tokens = tokens, .prompt = tokens, .generated = 1});
  measured.machine = tuned_machine(session.device->info());
  {
    ProgressBar bar("measuring " + model);
    MeasureOptions measure;
    measure.cancel = &interrupted();
    measure.progress = [&](uint64_t done, uint64_t total) {
      bar.update(done, total, fmt::format("{} of {} shapes", done, total));
    };
    measured.table.merge(measure_linear(
        *session.device, multiplied_matrices(*session.device, session.loaded->weights), measure));
  }
  if (options.softmax)
    measured.table.set_scores(session.loaded->model.spec.name, measure_softmax(session));
  const std::vector<SplitCurve> splits = measure_sharing(session, model);
  measured.splits.insert(measured.splits.end(), splits.begin(), splits.end());
}

json report(const std::string& path, const Measured& measured) {
  const TunedMachine& machine = measured.machine;
  const TuningTable& table = measured.table;
  json out{{"file", path},
           {"device", machine.device},
           {"hardware", machine.hardware},
           {"threads", machine.threads},
           {"linear", json::array()},
           {"scores", json::array()},
           {"splits", json::array()}};
  for (const SplitCurve& split : measured.splits) {
    out["splits"].push_back({{"type", dtype_name(split.shape.type)},
                             {"rows", split.shape.rows},
                             {"cols", split.shape.cols},
                             {"tokens", split.tokens},
                             {"cpu_share", split.crossing()},
                             {"seconds", split.cpu.at(split.crossing())}});
  }
  for (const auto& [model, bounds] : table.scores()) {
    out["scores"].push_back(
        {{"model", model}, {"lowest_top", bounds.lowest_top}, {"highest", bounds.highest}});
  }
  const auto point = [](int32_t m) { return m == kNeverInflection ? json(nullptr) : json(m); };
  for (const auto& [shape, points] : table.measured()) {
    out["linear"].push_back({{"type", dtype_name(shape.dtype)},
                             {"packed", shape.layout == WeightLayout::kGroups16},
                             {"n", shape.n},
                             {"k", shape.k},
                             {"m1", point(points.m1)},
                             {"m2", point(points.m2)}});
  }
  return out;
}

void print_report(const json& out) {
  print_now(fmt::format("{}, {}; by the number of tokens:\n", out["hardware"].get<std::string>(),
                        format_count(out["threads"].get<int>(), "thread")));
  print_now(fmt::format("{:<6} {:<7} {:>8} {:>8}   {:>9} {:>9}\n", "type", "layout", "N", "K",
                        "flat from", "GEMM from"));
  const auto point = [](const json& m) {
    return m.is_null() ? std::string("-") : std::to_string(m.get<int>());
  };
  for (const json& row : out["linear"]) {
    print_now(fmt::format("{:<6} {:<7} {:>8} {:>8}   {:>9} {:>9}\n", row["type"].get<std::string>(),
                          row["packed"].get<bool>() ? "packed" : "rows", row["n"].get<int64_t>(),
                          row["k"].get<int64_t>(), point(row["m1"]), point(row["m2"])));
  }
  for (const json& row : out["scores"]) {
    print_now(fmt::format("{}: the largest attention score of a row is {:.1f} to {:.1f}\n",
                          printable(row["model"].get<std::string>()),
                          row["lowest_top"].get<float>(), row["highest"].get<float>()));
  }
  if (!out["splits"].empty()) {
    print_now("with the weights in host memory, by tokens: the CPU's share of the rows, and ms\n");
    for (const json& row : out["splits"]) {
      print_now(fmt::format(
          "{:<6} {:>8} x {:<8} {:>5}   {:>4.0f}% {:>9.3f}\n", row["type"].get<std::string>(),
          row["rows"].get<int64_t>(), row["cols"].get<int64_t>(), row["tokens"].get<int64_t>(),
          row["cpu_share"].get<double>() * 100, row["seconds"].get<double>() * 1e3));
    }
  }
  print_now(fmt::format("kept in {}\n", printable_path(out["file"].get<std::string>())));
}

// Warns if other programs kept the machine busy: the measured rates are then too low, and are
// stored. `load` was measured before.
void warn_if_busy(const std::optional<CpuLoad>& load) {
  if (!load || !load->disturbs_measuring()) return;
  log_warning(
      "other programs used {:.1f} of this machine's {} processors, so the figures are too low; "
      "measure again when it is idle",
      load->busy_processors, load->processors);
}

int profile(const ProfileOptions& options) {
  if (options.models.empty()) {
    SPW_CHECK(!options.softmax, kInvalidArgument, "--softmax looks at a model; give one");
    const auto load = try_measure_cpu_load();
    const int code = profile_machine({.session = options.session,
                                      .output = options.output,
                                      .seconds = options.seconds,
                                      .json = options.json});
    warn_if_busy(load);
    return code;
  }
  const auto path =
      options.output.empty() ? try_default_tuning_path() : std::filesystem::path(options.output);
  SPW_CHECK(path.has_value(), kInvalidArgument,
            "neither XDG_CACHE_HOME nor HOME is set, so there is no place for the tuning file; "
            "give one with -o");
  const auto load = try_measure_cpu_load();
  Measured measured;
  for (const std::string& model : options.models) measure_model(options, model, measured);
  write_tuning(*path, measured.machine, measured.table, options.output.empty());
  const json out = report(path->string(), measured);
  if (options.json) {
    print_json(out);
  } else {
    print_report(out);
  }
  warn_if_busy(load);
  return 0;
}

}  // namespace

void add_profile_command(Command& app) {
  auto* command = app.add_subcommand(
      "profile", "measure this machine, or which kernels suit models on it, and keep the answer");
  auto options = std::make_shared<ProfileOptions>();
  command
      ->add_option("-m,--model,MODEL", options->models,
                   "models whose matrices are measured: GGUF file, Hugging Face folder, smollm2, "
                   "or dummy:NAME")
      ->default_text("none, the machine is measured")
      ->basic();
  add_device_flags(*command, options->session);
  add_loading_flags(*command, options->session);
  command
      ->add_option("-o,--output", options->output,
                   "the machine's file to write, or the tuning file to write or add to")
      ->placeholder("FILE")
      ->default_text("the one in the cache")
      ->group(HelpGroup::kOutput)
      ->basic();
  command->add_option("--seconds", options->seconds, "without a model: about how long to measure")
      ->check(in_range(0.1, 3600.0))
      ->placeholder("SECONDS")
      ->basic();
  command
      ->add_option("--disk-dir", options->session.placement.disk_dir,
                   "without a model: folder on the disk that is measured")
      ->placeholder("DIR")
      ->default_text("the folder for temporary files")
      ->group(HelpGroup::kMemory)
      ->basic();
  command
      ->add_flag("--softmax", options->softmax,
                 "also look at attention scores, for the unified maximum of GPU kernels")
      ->group(HelpGroup::kSpeed);
  command->add_flag("--json", options->json, "print one JSON object")
      ->group(HelpGroup::kOutput)
      ->basic();
  command->example("spillway profile");
  command->example("spillway profile smollm2");
  command->example("spillway profile dummy:llama-2-7b:q4_0 dummy:tinyllama-1.1b --threads 8");
  command->note(
      "Without a model: processors, links and the disk, for spillway plan (hardware.json in the "
      "cache; --hardware FILE).");
  command->note(
      "With models: which kernels suit their matrices (tuning.json), a second or two for each; "
      "and, with a GPU, which share of them the CPU should multiply where they are in host memory "
      "(into hardware.json). The other commands use it when it is there (--tuning FILE, "
      "--no-tuning), for the number of threads that was measured; results may differ in the last "
      "bits.");
  command->note("Both want an idle machine.");
  command->action([options] { return profile(*options); });
}

}  // namespace spillway
