// SPDX-License-Identifier: Apache-2.0
// Makes the device, plans the placement and loads the model, for every program that runs one.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "device/device.h"
#include "engine/hardware_choice.h"
#include "engine/loaded_model.h"
#include "engine/result_settings.h"
#include "engine/runner.h"
#include "engine/session_options.h"
#include "engine/session_services.h"
#include "kv/kv_store.h"
#include "memory/transfer_scheduler.h"
#include "plan/expected_run.h"
#include "plan/fit_suggestions.h"
#include "plan/predict.h"
#include "plan/resolved_plan.h"
#include "storage/async_io.h"

namespace spillway {

// Returns whether a model runs at any context length. Rotary positions have no end, and random
// weights give no better text in a short context, so a dummy model with rotary positions takes the
// requested context.
bool has_any_context(const std::string& model, const ModelSpec& spec);

// A device and a model on it. Not movable, as runners refer to it.
struct Session {
  // Makes the device and reads the model's description and its tokenizer: enough to know what can
  // be run.
  Session(const SessionOptions& options, SessionServices services);
  // Plans the placement for `run`. `which`: the number of the plan among those that the options
  // name. Throws kOutOfMemory, naming what would help, before any work.
  void choose_plan(const ExpectedRun& run, size_t which = 0);
  // Loads the weights for that plan and reports its progress. If an allocation is refused that had
  // been planned, goes on with the next best plan. When called for another plan, keeps the weights
  // that are loaded and only changes their homes, the memories in which they live; no runner may be
  // left then, and after an error there is no model.
  void load();
  void load(const ExpectedRun& run, size_t which = 0) {
    choose_plan(run, which);
    load();
  }

  // Estimates how long the plan takes for the requests of `workload`, `sequences` of them
  // concurrently, on this machine as far as it is known.
  Prediction predict_run(const Workload& workload, int64_t sequences) const;
  Prediction predict_run() const;  // for the run that was expected
  Workload expected_workload() const;
  // The plan in effect with all that follows from it.
  const ResolvedPlan& resolved() const { return resolved_; }
  const Plan& plan() const { return resolved_.plan; }
  // Returns the same plan for a runner of `sequences` sequences of `tokens` tokens.
  ResolvedPlan resolved_for(int64_t tokens, int64_t sequences) const;
  // Call after a run: warns if the CPU was not as fast with its rows of linear layers as the plan
  // assumed, and says what to do.
  void report_drift(const HostLinear::Stats& stats) const;
  // describe_plan() returns one line about the plan for people: the placement and the estimated
  // speed. report_plan() shows it as a notice if not everything is on the device, else in the log.
  std::string describe_plan() const;
  void report_plan() const;
  // Returns the tokens of a sequence that the plan has room for.
  int64_t planned_tokens() const { return resolved_.size.tokens; }
  // Returns the tokens of context to make room for: `wanted`, or if that is 0 the model's own, at
  // most 4096.
  int64_t context_tokens(int64_t wanted) const;
  // Makes a KV cache with room for `sequences` sequences of `tokens` tokens each, and a decoder for
  // them. If memory is refused, goes on with the next best plan, or with kThrow throws
  // kOutOfMemory.
  enum class OnRefusal : uint8_t { kPlanAgain, kThrow };
  Runner make_runner(int64_t tokens, int64_t sequences = 1,
                     OnRefusal on_refusal = OnRefusal::kPlanAgain);
  // Makes a runner for as many of these sequences as there is memory for, at least one. Blocks are
  // taken as tokens come, so sequences that stay short leave room for others.
  Runner make_runner_that_fits(int64_t tokens, int64_t sequences);
  // Makes the KV stores for what the pools of that runner's cache evict, as the options say, one
  // for each group of layers; none if they ask for none. `context`: tokens of a sequence. Throws
  // kInvalidArgument for an invalid --kv-dir.
  // `wanted`: whether a store uses host memory if the options ask for it, or also if the device has
  // memory of its own.
  enum class KvStoreHost : uint8_t { kWhereAsked, kWhereDiscrete };
  std::vector<std::unique_ptr<KvStore>> make_kv_stores(
      const KvCache& kv, int64_t context, KvStoreHost wanted = KvStoreHost::kWhereAsked);
  // Returns null if the model has none.
  const Tokenizer* tokenizer() const;
  // The drafts that the options or, where these request none, the plan's file requests.
  const DraftOptions& drafts() const { return options_.drafts; }
  // Returns what is known of this machine.
  const Hardware& hardware() const { return machine().hardware; }

  std::optional<LoadedTuning> tuning;  // before the device, which refers to it
  // The CPU, if the device is another.
  std::unique_ptr<Device> own_host;
  std::unique_ptr<Device> device;
  std::unique_ptr<TransferScheduler> transfers;  // of the device
  Device& host() { return own_host ? *own_host : *device; }
  const Device& host() const { return own_host ? *own_host : *device; }
  IoQueue disk_queue;  // for all that loading and runners have on disk
  // The tokens of a sequence and the number of concurrent sequences that plan files give.
  std::optional<int64_t> planned_context() const { return asked_plan_.context; }
  std::optional<int> planned_sequences() const {
    const std::optional<Plan>& kept = options_.placement.kept;
    return asked_plan_.sequences || !kept ? asked_plan_.sequences : kept->sequences;
  }
  std::filesystem::path disk_dir;
  uint64_t disk_bytes = 0;
  std::unique_ptr<LoadedModel> loaded;
  ResultSettings settings;  // host_attention and host_linear are set with the plan
  // Returns all that the bits of KV depend on besides the tokens: the model, by the contents of its
  // files, and the settings. Sessions with the same salt may use each other's KV.
  std::string kv_salt() const;
  double load_seconds = 0;
  // Returns what `settings` would be by plans with other placements, for runs whose results do not
  // depend on the sequences beside them.
  std::vector<ResultSettings> settings_by_other_plans() const;

 private:
  // Returns the current budget of each memory, including what the session itself holds.
  Budgets budgets_now() const;
  // Plans the placement of what `run` needs, or of as much of it as there is room for
  // (plan/choose_plan.h). Throws kOutOfMemory with suggestions.
  void place(const ExpectedRun& run, size_t which);
  // Sets those settings of a result that follow from the plan.
  void describe_run();
  PlanContext& context() const;
  // Call after memory was refused: chooses the best plan within less. Returns false, with nothing
  // changed, if there is none, or if it would change results that must stay the same.
  bool try_place_again(const Error& refused);
  void report_refusals();
  void load_as_planned();
  KvCosts kv_costs() const;
  // Returns null if there is no memory; `folder` is then still the caller's.
  std::unique_ptr<KvStore> try_make_store(const KvCache& kv, KvStore::Options options,
                                          uint64_t slots, std::unique_ptr<BlockFolder>& folder);
  void measure_missing();
  const ChosenHardware& machine() const;
  FitLimits fit_limits(const ExpectedRun& run) const;
  DeviceTraits traits_within(const Budgets& budgets) const;
  // Makes a session with the options that plan files set, too; all of the files must agree.
  Session(SessionOptions options, const Plan& asked, SessionServices services);

  SessionServices services_;
  SessionOptions options_;
  Plan asked_plan_;  // the first that was given
  WeightLoadOptions load_;
  mutable std::optional<ChosenHardware> machine_;  // set by the first call of machine()
  // These belong to the current plan.
  ExpectedRun run_;
  size_t which_ = 0;
  Budgets budgets_;
  std::string refused_;  // the error that the plan before this one met
  bool warned_of_gpu_options_ = false;
  ResolvedPlan resolved_;
  mutable std::unique_ptr<PlanContext> context_;  // from its first use on; see context()
};

}  // namespace spillway
