// SPDX-License-Identifier: Apache-2.0
// What every command that runs a model does first: the options, the device, loading.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "cli/placement_options.h"
#include "cli/result_settings.h"
#include "cli/tuning_options.h"
#include "device/device.h"
#include "engine/loaded_model.h"
#include "engine/runner.h"

namespace CLI {
class App;
}

namespace spillway {

struct SessionOptions {
  std::string model;
  std::string device = "auto";
  std::string gpu_memory;  // "" = what is free
  std::string threads = "0";
  bool deterministic = false;
  bool no_mmap = false;
  bool compress_weights = false;
  std::string kv_type = "auto";
  bool compress_kv = false;
  float attention_topk = 0;  // 0 = dense
  int max_step_tokens = 0;   // 0 = what suits the device
  TuningOptions tuning;
  PlacementOptions placement;
  // What the command is going to run, as far as it knows: the rule that places things leaves room
  // for it.
  int64_t expected_tokens = 0;
  int64_t expected_sequences = 1;
  // What it will need at least, known for sure: what cannot hold it is refused before any work.
  int64_t least_tokens = 1;
  int64_t least_sequences = 1;

  // MODEL and the options that all such commands share.
  void add_to(CLI::App& command, bool several_plans = false);
  // Of these, for commands that need no more: where to compute, and how weights get there.
  void add_device_to(CLI::App& command);
  void add_loading_to(CLI::App& command);
};

// Rotated positions go on for ever, and random weights do not mind: the context of such a dummy
// model is what is asked of it.
bool has_any_context(const std::string& model, const ModelSpec& spec);

enum class Loading : uint8_t { kNow, kLater };

// A device and a model on it, loaded with a progress bar. Not movable, as runners refer to it.
struct Session {
  // `plan`: which of those that the options name. With Loading::kLater everything is known and
  // nothing is loaded until load().
  explicit Session(const SessionOptions& options, size_t plan = 0, Loading when = Loading::kNow);
  void load(const SessionOptions& options);
  // The next plan, for the same options: weights that this one has are kept, and only change their
  // homes. No runner of this one may be left. After an error there is no model.
  void use_plan(const SessionOptions& options, size_t plan);

  // Tokens of context to make room for: `wanted`, or where that is 0 the model's own, at most 4096.
  int64_t context_tokens(int64_t wanted) const;
  // Room for `sequences` sequences of `tokens` tokens each, and a decoder for them.
  Runner make_runner(int64_t tokens, int64_t sequences = 1);
  // Null where the model has none.
  const Tokenizer* tokenizer() const;

  std::optional<LoadedTuning> tuning;  // before the device, which refers to it
  // The CPU, where the device is another.
  std::unique_ptr<Device> own_host;
  std::unique_ptr<Device> device;
  Device& host() { return own_host ? *own_host : *device; }
  Plan plan;
  std::filesystem::path disk_dir;
  uint64_t disk_bytes = 0;
  std::unique_ptr<LoadedModel> loaded;
  ResultSettings settings;
  int max_step_tokens;
  double load_seconds = 0;

 private:
  void choose_plan(const SessionOptions& options, size_t which);

  WeightLoadOptions load_;
  // Of the plan.
  int64_t plan_tokens_ = 0;
  Budgets budgets_;
};

// Also without a model: `--device` as a device; auto is the first GPU, or the CPU where there is
// none. `threads` is a number, 0 for all, or a list of processors (0-7,16), to which this thread is
// then restricted too. Throws kInvalidArgument for devices and processors that do not exist here.
std::unique_ptr<Device> make_device(const std::string& name, const std::string& threads,
                                    const std::string& gpu_memory = "",
                                    const std::string& host_memory = "");

}  // namespace spillway
