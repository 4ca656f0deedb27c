// SPDX-License-Identifier: Apache-2.0
// What every command that runs a model does first: the options, the device, loading.
#pragma once

#include <memory>
#include <string>

#include "cli/tuning_options.h"
#include "device/device.h"
#include "engine/loaded_model.h"
#include "kv/kv_cache.h"
#include "runtime/decoder.h"

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

  // MODEL and the options that all such commands share.
  void add_to(CLI::App& command);
  // Of these, for commands that need no more: where to compute, and how weights get there.
  void add_device_to(CLI::App& command);
  void add_loading_to(CLI::App& command);
};

// What a run of a loaded model needs besides it.
struct Runner {
  KvCache kv;
  Decoder decoder;
};

// A device and a model on it, loaded with a progress bar. Not movable.
struct Session {
  explicit Session(const SessionOptions& options);

  // Tokens of context to make room for: `wanted`, or where that is 0 the model's own, at most 4096.
  int64_t context_tokens(int64_t wanted) const;
  // Room for `sequences` sequences of `tokens` tokens each, and a decoder for them.
  Runner make_runner(int64_t tokens, int64_t sequences = 1);
  // Null where the model has none.
  const Tokenizer* tokenizer() const;

  std::optional<LoadedTuning> tuning;  // before the device, which refers to it
  std::unique_ptr<Device> device;
  std::unique_ptr<LoadedModel> loaded;
  KvType kv_type;
  int max_step_tokens;
  float attention_topk;
  double load_seconds = 0;
};

// Also without a model: `--device` as a device; auto is the first GPU, or the CPU where there is
// none. `threads` is a number, 0 for all, or a list of processors (0-7,16), to which this thread is
// then restricted too. Throws kInvalidArgument for devices and processors that do not exist here.
std::unique_ptr<Device> make_device(const std::string& name, const std::string& threads,
                                    const std::string& gpu_memory = "");

}  // namespace spillway
