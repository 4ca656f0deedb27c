// SPDX-License-Identifier: Apache-2.0
// What everybody does who runs a model: makes the device, decides what goes where, loads.
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
#include "plan/expected_run.h"
#include "plan/fit_suggestions.h"
#include "plan/predict.h"
#include "plan/resolved_plan.h"
#include "storage/async_io.h"

namespace spillway {

// Rotated positions go on for ever, and random weights do not mind: the context of such a dummy
// model is what is asked of it.
bool has_any_context(const std::string& model, const ModelSpec& spec);

// A device and a model on it. Not movable, as runners refer to it.
struct Session {
  // The device, the model's description and its tokenizer: enough to know what there is to run.
  Session(const SessionOptions& options, SessionServices services);
  // Decides where things go for such a run. `which` of the plans that the options name. Throws
  // kOutOfMemory, naming what would help, before any work.
  void choose_plan(const ExpectedRun& run, size_t which = 0);
  // Loads the weights for that plan and tells how far it is. Where memory is refused that was free
  // before, by the next best plan. For another plan: weights that are there are kept and only
  // change their homes; no runner may be left, and after an error there is no model.
  void load();
  void load(const ExpectedRun& run, size_t which = 0) {
    choose_plan(run, which);
    load();
  }

  // How long the plan takes for such requests, `sequences` of them at once, on this machine as far
  // as it is known.
  Prediction predict_run(const Workload& workload, int64_t sequences) const;
  Prediction predict_run() const;  // for the run that was expected
  Workload expected_workload() const;
  // The plan in effect with all that follows from it.
  const ResolvedPlan& resolved() const { return resolved_; }
  const Plan& plan() const { return resolved_.plan; }
  // The same plan for a runner of so many sequences.
  ResolvedPlan resolved_for(int64_t tokens, int64_t sequences) const;
  // After a run: whether the CPU was as fast with its rows of linear layers as the plan had it, and
  // what mends it where it was not.
  void report_drift(const HostLinear::Stats& stats) const;
  // Of the plan, in one line for people: what goes where, how fast it should be. Said: as a notice
  // where not everything is on the device, else in the log.
  std::string describe_plan() const;
  void say_plan() const;
  // Of a sequence, as the plan has room for.
  int64_t planned_tokens() const { return resolved_.size.tokens; }
  // Tokens of context to make room for: `wanted`, or where that is 0 the model's own, at most 4096.
  int64_t context_tokens(int64_t wanted) const;
  // Room for `sequences` sequences of `tokens` tokens each, and a decoder for them. Where memory is
  // refused, by the next best plan, or kThrow: kOutOfMemory.
  enum class OnRefusal : uint8_t { kPlanAgain, kThrow };
  Runner make_runner(int64_t tokens, int64_t sequences = 1,
                     OnRefusal on_refusal = OnRefusal::kPlanAgain);
  // As many of these sequences as there is memory for, at least one. Blocks are taken as tokens
  // come, so sequences that stay short leave room for others.
  Runner make_runner_that_fits(int64_t tokens, int64_t sequences);
  // Where KV of that runner's cache goes that its pools have no room for, as the options say, by
  // group of layers; none: nowhere. `context`: of a sequence. Throws kInvalidArgument for a
  // --kv-dir that is none.
  enum class KvStoreHost : uint8_t {
    kWhereAsked,
    kWhereApart
  };  // that the device is, from the host
  std::vector<std::unique_ptr<KvStore>> make_kv_stores(
      const KvCache& kv, int64_t context, KvStoreHost wanted = KvStoreHost::kWhereAsked);
  // Null where the model has none.
  const Tokenizer* tokenizer() const;
  // The drafts that the options or, where these request none, the plan's file requests.
  const DraftOptions& drafts() const { return options_.drafts; }
  // This machine, as far as it is known.
  const Hardware& hardware() const { return machine().hardware; }

  std::optional<LoadedTuning> tuning;  // before the device, which refers to it
  // The CPU, where the device is another.
  std::unique_ptr<Device> own_host;
  std::unique_ptr<Device> device;
  Device& host() { return own_host ? *own_host : *device; }
  const Device& host() const { return own_host ? *own_host : *device; }
  IoQueue disk_queue;  // of all that loading and runners have on disk
  // As plan files say it: tokens of a sequence, sequences at once.
  std::optional<int64_t> planned_context() const { return asked_plan_.context; }
  std::optional<int> planned_sequences() const {
    const std::optional<Plan>& kept = options_.placement.kept;
    return asked_plan_.sequences || !kept ? asked_plan_.sequences : kept->sequences;
  }
  std::filesystem::path disk_dir;
  uint64_t disk_bytes = 0;
  std::unique_ptr<LoadedModel> loaded;
  ResultSettings settings;  // who attends: with the plan
  // What the bits of KV depend on besides the tokens: the model, by what is in its files, and the
  // settings. Who has the same may use each other's KV.
  std::string kv_salt() const;
  double load_seconds = 0;
  // What these would be by plans that place things otherwise, of runs whose results do not depend
  // on the sequences beside them.
  std::vector<ResultSettings> settings_by_other_plans() const;

 private:
  // What there is of each memory now, what the session itself holds included.
  Budgets budgets_now() const;
  // Decides where things go for what `run` needs, or as much of it as there is room for
  // (plan/choose_plan.h). Throws kOutOfMemory with suggestions.
  void place(const ExpectedRun& run, size_t which);
  // Fills in which settings of a result follow from the plan.
  void describe_run();
  PlanContext& context() const;
  // After memory was refused: the best plan within less. False, and nothing has changed, where
  // there is none or where results would be others.
  bool try_place_again(const Error& refused);
  void say_what_was_refused();
  void load_as_planned();
  KvCosts kv_costs() const;
  // Null where there is no memory; `folder` is then still the caller's.
  std::unique_ptr<KvStore> try_make_store(const KvCache& kv, KvStore::Options options,
                                          uint64_t slots, std::unique_ptr<BlockFolder>& folder);
  void measure_what_is_missing();
  const ChosenHardware& machine() const;
  FitLimits what_may_change(const ExpectedRun& run) const;
  DeviceTraits traits_within(const Budgets& budgets) const;
  // Options with what plan files say: all of them must agree.
  Session(SessionOptions options, const Plan& asked, SessionServices services);

  SessionServices services_;
  SessionOptions options_;
  Plan asked_plan_;  // the first that was given
  WeightLoadOptions load_;
  mutable std::optional<ChosenHardware> machine_;  // where somebody has asked for it
  // Of the plan.
  ExpectedRun run_;
  size_t which_ = 0;
  Budgets budgets_;
  std::string refused_;  // what the plan before this one met with
  bool warned_of_gpu_options_ = false;
  ResolvedPlan resolved_;
  mutable std::unique_ptr<PlanContext> context_;  // from its first use on; see context()
};

}  // namespace spillway
