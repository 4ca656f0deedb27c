// SPDX-License-Identifier: Apache-2.0
#include "cli/session.h"

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <optional>
#include <utility>

#include "base/byte_units.h"
#include "base/cpu_list.h"
#include "base/error.h"
#include "base/log.h"
#include "base/printable.h"
#include "base/stopwatch.h"
#include "cli/interrupt.h"
#include "cli/model_catalog.h"
#include "cli/model_fingerprint.h"
#include "cli/terminal.h"
#include "cpu/cpu_device.h"
#include "cuda/cuda.h"
#include "runtime/weight_mover.h"

namespace spillway {

void SessionOptions::add_device_to(CLI::App& command) {
  command
      .add_option("--device", device,
                  "where to compute: cpu, cuda, cuda:N, or auto: the first GPU if there is one")
      ->capture_default_str();
  command.add_option("--gpu-memory", gpu_memory,
                     "most GPU memory to use, such as 16GiB (default: what is free)");
  command
      .add_option(
          "-t,--threads", threads,
          "CPU threads, 0 = all that this process may use; or the processors to run on: 0-7,16")
      ->capture_default_str();
}

void SessionOptions::add_loading_to(CLI::App& command) {
  command.add_flag("--no-mmap", no_mmap,
                   "read all weights past the page cache, instead of mapping those that can be "
                   "used as they are");
  compute.add_compress_weights_to(command);
}

void SessionOptions::add_to(CLI::App& command, bool several_plans) {
  command
      .add_option("-m,--model,MODEL", model,
                  "GGUF file, Hugging Face folder, smollm2, or dummy:NAME")
      ->required();
  add_device_to(command);
  command.add_flag("--deterministic", deterministic,
                   "same results whatever the batch around a sequence");
  tuning.add_to(command);
  add_loading_to(command);
  compute.add_others_to(command);
  placement.add_to(command, several_plans);
}

namespace {

// What --threads says: a plain number is how many, anything longer a list of processors.
CpuDeviceOptions parse_threads(const std::string& text) {
  const bool number =
      !text.empty() && text.size() <= 5 && text.find_first_not_of("0123456789") == text.npos;
  if (number) return {.threads = std::stoi(text), .cpus = {}};
  const auto cpus = try_parse_cpu_list(text);
  SPW_CHECK(cpus && !cpus->empty(), kInvalidArgument,
            "--threads is '{}'; give a number, or processors such as 0-7,16", text);
  return {.threads = 0, .cpus = *cpus};
}

}  // namespace

namespace {

// The GPU that `name` means, or nullopt for the CPU.
std::optional<int> try_gpu_index(const std::string& name) {
  if (name == "cpu") return std::nullopt;
  if (name == "cuda") return 0;
  if (name == "auto") {
    return list_cuda_devices().devices.empty() ? std::nullopt : std::optional(0);
  }
  constexpr std::string_view kPrefix = "cuda:";
  const std::string digits =
      name.starts_with(kPrefix) ? name.substr(kPrefix.size()) : std::string();
  SPW_CHECK(!digits.empty() && digits.size() <= 3 &&
                digits.find_first_not_of("0123456789") == digits.npos,
            kInvalidArgument,
            "no device '{}'; give cpu, cuda, cuda:N or auto (see spillway inspect --devices)",
            name);
  return std::stoi(digits);
}

}  // namespace

std::unique_ptr<Device> make_device(const std::string& name, const std::string& threads,
                                    const std::string& gpu_memory, const std::string& host_memory) {
  CudaDeviceOptions cuda;
  // Also where it is not for this device: a slip of the pen should show on every machine.
  if (!gpu_memory.empty()) cuda.memory_bytes = parse_memory(gpu_memory, "--gpu-memory");
  if (const std::optional<int> gpu = try_gpu_index(name)) {
    SPW_CHECK(gpu_memory.empty() || cuda.memory_bytes > 0, kInvalidArgument,
              "--gpu-memory is 0; use --device cpu");
    cuda.index = *gpu;
    return make_cuda_device(cuda);
  }
  CpuDeviceOptions options = parse_threads(threads);
  if (!host_memory.empty()) {
    options.memory_bytes = parse_memory(host_memory, "--host-memory");
    SPW_CHECK(options.memory_bytes > 0, kInvalidArgument,
              "--host-memory is 0; nothing runs without memory");
  }
  const int available = available_threads();
  if (options.threads > available) {
    log_warning("{} threads on {} processors take turns; fewer are faster", options.threads,
                available);
  }
  auto device = std::make_unique<CpuDevice>(options);
  // All of them, not one: readers of files start here too. Workers have theirs already, so this
  // thread finds the one that is left.
  if (!options.cpus.empty()) {
    SPW_CHECK(try_restrict_this_thread(options.cpus), kInvalidArgument,
              "the processors {} cannot be used here", threads);
  }
  return device;
}

bool has_any_context(const std::string& model, const ModelSpec& spec) {
  return try_dummy_name(model) && spec.position == PositionKind::kRope;
}

namespace {

// What the options say of results; device, model and plan say the rest. Every option is here: one
// that changes a bit of some result becomes part of ResultSettings, which the session reads it
// from. A new one stops this from compiling until that has been decided.
ResultSettings asked_settings(const SessionOptions& options) {
  const auto& [model, device, gpu_memory, threads, deterministic, no_mmap, compute, tuning,
               placement] = options;
  [[maybe_unused]] const auto& [compress_weights, kv_type, compress_kv, attention_topk, chunk] =
      compute;
  ResultSettings settings;
  settings.program = SPILLWAY_VERSION;
  settings.deterministic = deterministic;
  settings.attention_topk = compute.checked_topk();
  // Known later: the device; the types of weights (compress_weights) and KV; the tuning; and, from
  // the plan, who attends. Without effect: where things lie, threads, chunks.
  return settings;
}

// The first plan that was given; the others may only place things otherwise.
Plan read_asked_plan(const SessionOptions& options) {
  const std::vector<std::string>& files = options.placement.plans;
  if (files.empty()) return {};
  const Plan first = read_plan(files[0]);
  for (const std::string& file : files) {
    const Plan plan = read_plan(file);
    SPW_CHECK(plan.compress_weights == first.compress_weights && plan.kv_type == first.kv_type &&
                  plan.attention_topk == first.attention_topk && plan.chunk == first.chunk,
              kInvalidArgument,
              "{}: another weight_type, kv_type, attention_topk or chunk than {}; measure them one "
              "by one",
              printable_path(file), printable_path(files[0]));
    if (!plan.made_for.model.empty() &&
        plan.made_for.model != model_fingerprint(resolve_model(options.model)))
      log_warning("{} was made for another model", printable_path(file));
  }
  return first;
}

SessionOptions with_plan(SessionOptions options, const Plan& plan) {
  options.compute.take_from(plan);
  const std::optional<Plan>& kept = options.placement.kept;
  if (kept && kept->chunk && options.compute.chunk == 0) options.compute.chunk = *kept->chunk;
  return options;
}

}  // namespace

Session::Session(const SessionOptions& options) : Session(options, read_asked_plan(options)) {}

Session::Session(SessionOptions asked, const Plan& asked_plan)
    : options_(with_plan(std::move(asked), asked_plan)), asked_plan_(asked_plan) {
  const SessionOptions& options = options_;
  SPW_CHECK(
      !options.tuning.measure || !options.deterministic, kInvalidArgument,
      "--tune measures how to divide the work, and --deterministic takes no such division but "
      "from a plan's file; use one of them");
  settings = asked_settings(options);
  const std::string path = resolve_model(options.model);
  const auto asked_kv_type = options.compute.try_kv_type();
  device = make_device(options.device, options.threads, options.gpu_memory,
                       options.placement.host_memory);
  if (!device->host_visible())
    own_host = make_device("cpu", options.threads, "", options.placement.host_memory);
  settings.device = describe_device(*device);
  device->ops().set_deterministic(settings.deterministic);
  host().ops().set_deterministic(settings.deterministic);
  tuning = options.tuning.try_load(device->info());
  if (tuning) device->ops().set_tuning(&tuning->table);

  disk_dir = options.placement.disk_folder();
  disk_bytes = options.placement.disk_bytes();
  load_.access = options.no_mmap ? WeightAccess::kDirect : WeightAccess::kMapped;
  load_.compress = options.compute.compress_weights;
  load_.cancel = &interrupted();
  loaded = describe_for_loading(*device, path, load_);
  const Model& model = loaded->model;
  settings.weight_types = describe_weight_types(model);
  settings.kv_type = asked_kv_type.value_or(default_kv_type(model));
  settings.tuning = describe_tuning(tuning ? &tuning->table : nullptr, settings.deterministic,
                                    *device, model.spec.name);
  if (tuning) {
    if (const auto bounds = tuning->table.try_scores(model.spec.name))
      device->ops().set_score_bounds(&*bounds);
  }
}

void Session::load() {
  constexpr int kPlans = 4;
  for (int plans = 1;; ++plans) {
    try {
      load_as_planned();
      say_what_was_refused();
      return;
    } catch (const Error& error) {
      if (plans == kPlans || !try_place_again(error)) throw;
    }
  }
}

void Session::load_as_planned() {
  const Stopwatch watch;
  const ModelSpec& spec = loaded->model.spec;
  const uint64_t weights_on_disk = needs_.disk.of(MemoryTag::kWeights);
  // Of a plan after another, peaks are those of its run: between the two there is more.
  const auto forget_peaks = [&] {
    device->reset_peaks();
    host().reset_peaks();
  };
  const uint64_t disk_budget = budgets_.disk - (needs_.disk.total() - weights_on_disk);
  const WeightPlacement placement{.weights = plan.weight_plan(),
                                  .host = &host(),
                                  .queue = &disk_queue,
                                  .disk_dir = disk_dir,
                                  .disk_budget = disk_budget,
                                  .most_pinned = options_.placement.pinned_bytes()};
  if (loaded->weights.try_stay(*device, loaded->model, placement)) {
    load_seconds = watch.seconds();
    forget_peaks();
    return;
  }
  KeptWeights kept = keep_weights(*device, loaded->model, std::exchange(loaded->weights, {}),
                                  placement, budgets_.host);
  {
    ProgressBar bar("loading " + options_.model);
    WeightLoadOptions load = load_;
    load.progress = [&](uint64_t done, uint64_t total) {
      bar.update(done, total, fmt::format("{} of {}", format_bytes(done), format_bytes(total)));
    };
    load_weights_of(*loaded, *device, load, placement, std::move(kept));
  }
  load_seconds = watch.seconds();
  if (loaded->weights.counts().kept > 0) forget_peaks();
  log_info("{}: {} of weights, mostly {}, in {:.2f} s; {} on {} with {} threads", spec.name,
           format_bytes(static_cast<uint64_t>(loaded->model.weight_bytes())),
           dtype_name(loaded->model.main_dtype()), load_seconds, device->info().name,
           device->info().hardware, device->info().threads);
  if (!plan.all_on_device()) {
    const auto shares = [](const TierShares& of) {
      return fmt::format("{:.1f}, {:.1f}, {:.1f}%", of.device * 100, of.host * 100, of.disk * 100);
    };
    log_info("on {}, in host memory and on disk: weights {}; KV {}; activations {}{}",
             device->info().name, shares(plan.weights), shares(plan.kv), shares(plan.activations),
             plan.embeddings == Tier::kHost ? "; embeddings and head in host memory" : "");
  }
}

int64_t Session::context_tokens(int64_t wanted) const {
  const int64_t most = loaded->model.spec.max_context;
  SPW_CHECK(wanted >= 0 && wanted <= most, kInvalidArgument,
            "--ctx is {}; give 1 to {} (the model's context)", wanted, most);
  return wanted > 0 ? wanted : std::min<int64_t>(most, planned_context().value_or(4096));
}

Runner Session::make_runner(int64_t tokens, int64_t sequences, OnRefusal on_refusal) {
  const uint64_t disk_left = disk_bytes - std::min(disk_bytes, loaded->weights.disk_bytes());
  try {
    Runner runner = spillway::make_runner(*device, host(), disk_queue, *loaded, plan,
                                          runner_size(tokens, sequences), {disk_dir, disk_left},
                                          traits_within(budgets_));
    runner.decoder.set_attention_topk(settings.attention_topk);
    return runner;
  } catch (const Error& error) {
    if (on_refusal == OnRefusal::kThrow || !try_place_again(error)) throw;
  }
  load();
  return make_runner(tokens, sequences, OnRefusal::kThrow);
}

const Tokenizer* Session::tokenizer() const {
  return loaded->tokenizer ? &*loaded->tokenizer : nullptr;
}

}  // namespace spillway
