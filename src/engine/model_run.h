// SPDX-License-Identifier: Apache-2.0
// A loaded model with all that a command runs it with: runner, KV stores (which keep KV blocks for
// later requests) and engine.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "engine/draft_options.h"
#include "engine/engine.h"
#include "engine/engine_options.h"
#include "engine/runner.h"
#include "engine/scheduling_options.h"
#include "engine/serving_estimate.h"
#include "engine/session.h"
#include "kv/kv_store.h"

namespace spillway {

// The requirements of a command on a run.
struct RunOrder {
  // How many requests run concurrently, and when they are admitted.
  enum class Admission : uint8_t {
    kAny,     // the scheduler's usual limit
    kByPlan,  // by the plan's schedule
    // Like kByPlan, but never in batch blocks (sequences that begin together and end before the
    // next ones begin): clients of a server do not come in these.
    kContinuous,
    kWholeBlocks,  // in batch blocks of the zig-zag or row schedule, which keep prefill and decode
                   // apart
  };
  // When requests reuse KV that others have computed, which KV stores make room for.
  enum class Reuse : uint8_t {
    kNever,      // nor is a store made
    kWithStore,  // if the options ask for a store
    kAlways,
  };
  Admission admission = Admission::kAny;
  Reuse reuse = Reuse::kNever;
  Session::KvStoreHost store = Session::KvStoreHost::kWhereAsked;
  // If there is no memory for all sequences, the runner is made for fewer. More than these may run
  // if KV memory is over-committed, and the number of swapped layers, whose KV is loaded from host
  // memory in each step, is adapted.
  bool fits_fewer = false;
  // With fits_fewer: requests may wait for KV memory, so it may be over-committed.
  bool may_wait = false;
  // If KV memory is over-committed, a store keeps the KV of preempted sequences.
  bool keeps_preempted = false;
  // The usual request. If it is given, a step takes only as many prompt tokens as other requests
  // hardly notice.
  struct UsualRequest {
    int64_t prompt = 0, generated = 0;  // tokens
  };
  std::optional<UsualRequest> usual = {};
  std::optional<double> mean_answer = {};  // tokens, if all answers are known beforehand
  SchedulingOptions scheduling = {};
  AnswerLengths* lengths = nullptr;  // as EngineOptions::lengths
  DraftOptions drafts = {};
  bool with_text = true;  // else the engine has no tokenizer
};

// Makes the runner, stores and options of a run, each after those that it needs. The session must
// have loaded its model and outlive the run. Not thread-safe.
class ModelRun {
 public:
  // Makes a run for sequences of at most `tokens` tokens, `sequences` of which have room at full
  // length. Throws what Session::make_runner() and make_kv_stores() throw.
  ModelRun(Session& session, const RunOrder& order, int64_t tokens, int64_t sequences = 1);
  ModelRun(const ModelRun&) = delete;
  ModelRun& operator=(const ModelRun&) = delete;

  // Returns the engine, which the first call makes.
  Engine& engine();
  // With these two a caller can make engines with other options than engine(), one at a time.
  EngineOptions options;
  Runner runner;
  // Set with RunOrder::usual.
  std::optional<ServingEstimate> estimate = {};

 private:
  void share_memory(const RunOrder& order, int64_t planned);
  void make_stores(const RunOrder& order, int64_t tokens, int64_t planned);

  Session& session_;
  std::vector<std::unique_ptr<KvStore>> stores_;
  const Tokenizer* tokenizer_;
  std::optional<Engine> engine_;
};

}  // namespace spillway
