// SPDX-License-Identifier: Apache-2.0
#include "engine/session.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/printable.h"
#include "engine/model_catalog.h"
#include "engine/model_fingerprint.h"

namespace spillway {

std::string program_version() { return SPILLWAY_VERSION; }

bool has_any_context(const std::string& model, const ModelSpec& spec) {
  return try_dummy_name(model) && !spec.ropes.empty();
}

namespace {

// Returns the settings that the options decide; device, model and plan decide the rest. Every
// option is listed here: one that changes a bit of some result becomes part of ResultSettings,
// which the session reads it from. A new one does not compile until that has been decided.
ResultSettings asked_settings(const SessionOptions& options) {
  const auto& [model, device, gpu_memory, threads, deterministic, no_mmap, compute, tuning,
               placement, kv_store, drafts] = options;
  [[maybe_unused]] const auto& [compress_weights, kv_type, compress_kv, attention_topk, chunk] =
      compute;
  ResultSettings settings;
  settings.program = program_version();
  settings.deterministic = deterministic;
  settings.attention_topk = compute.checked_topk();
  // Set later: the device; the types of weights (compress_weights) and KV; the tuning; and, from
  // the plan, the CPU's share of the work. Without effect: placement, threads, chunks. Stored KV
  // (kv_store) is used only under the same settings. Drafts are further rows of a step, on which no
  // bit depends if none depends on the other sequences of a step.
  return settings;
}

// Returns the first plan that was given; the others may differ from it only in their placement.
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
  options.placement.take_from(plan);
  if (plan.deterministic.value_or(false)) options.deterministic = true;
  if (plan.lookup_drafts.value_or(false) && !options.drafts.is_on())
    options.drafts.kind = DraftKind::kLookup;
  const std::optional<Plan>& kept = options.placement.kept;
  if (kept && kept->chunk && options.compute.chunk == 0) options.compute.chunk = *kept->chunk;
  return options;
}

}  // namespace

Session::Session(const SessionOptions& options, SessionServices services)
    : Session(options, read_asked_plan(options), std::move(services)) {}

Session::Session(SessionOptions asked, const Plan& asked_plan, SessionServices services)
    : services_(std::move(services)),
      options_(with_plan(std::move(asked), asked_plan)),
      asked_plan_(asked_plan) {
  const SessionOptions& options = options_;
  SPW_CHECK(
      !options.tuning.measure || !options.deterministic, kInvalidArgument,
      "--tune measures how to divide the work, and --deterministic takes no such division but "
      "from a plan's file; use one of them");
  settings = asked_settings(options);
  const std::string path = resolve_model(options.model);
  const auto asked_kv_type = options.compute.try_kv_type();
  const std::string& host_memory = options.placement.host_memory;
  device = services_.devices.make({.name = options.device,
                                   .threads = options.threads,
                                   .gpu_memory = options.gpu_memory,
                                   .host_memory = host_memory});
  if (!device->host_visible())
    own_host = services_.devices.make(
        {.name = "cpu", .threads = options.threads, .host_memory = host_memory});
  transfers = std::make_unique<TransferScheduler>(*device);
  settings.device = describe_device(*device);
  device->ops().set_deterministic(settings.deterministic);
  host().ops().set_deterministic(settings.deterministic);
  tuning = options.tuning.try_load(device->info());
  if (tuning) device->ops().set_tuning(&tuning->table);

  disk_dir = options.placement.disk_folder();
  disk_bytes = options.placement.disk_bytes();
  load_.access = options.no_mmap ? WeightAccess::kDirect : WeightAccess::kMapped;
  load_.compress = options.compute.compress_weights;
  load_.cancel = services_.cancel;
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

int64_t Session::context_tokens(int64_t wanted) const {
  const int64_t most = loaded->model.spec.max_context;
  SPW_CHECK(wanted >= 0 && wanted <= most, kInvalidArgument,
            "--ctx is {}; give 1 to {} (the model's context)", wanted, most);
  return wanted > 0 ? wanted : std::min<int64_t>(most, planned_context().value_or(4096));
}

const Tokenizer* Session::tokenizer() const {
  return loaded->tokenizer ? &*loaded->tokenizer : nullptr;
}

}  // namespace spillway
