// SPDX-License-Identifier: Apache-2.0
// The engine's interface: requests and events. Nothing here depends on how a model is run.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "device/logprobs.h"
#include "engine/sampling_params.h"
#include "kv/kv_store_stats.h"
#include "memory/transfer_scheduler.h"
#include "predict/predicted_length.h"
#include "schedule/request_id.h"
#include "text/token_id.h"

namespace spillway {

enum class FinishReason : uint8_t {
  kStop,       // an end token, a stop id or a stop string
  kLength,     // max_tokens, the model's context, or the KV cache is full
  kCancelled,  // by cancel()
  kError,      // this sequence could not be computed; the others go on
};
const char* finish_reason_name(FinishReason reason);

// The predicted length of an answer (engine/answer_lengths.h).
struct LengthPrediction {
  int64_t tokens = 0;  // for which KV memory is reserved; 0: no prediction
  std::optional<PredictedLength> predicted = {};  // for learning from the real length
};

struct GenerationRequest {
  std::vector<TokenId> prompt;  // not empty
  int max_tokens = 128;         // the most generated; 0 only if the prompt is scored
  int min_tokens = 0;           // generated before an end token, a stop id or a stop text ends it
  // Log-probabilities of the prompt's own tokens: -1 none, 0 only these, n also of the n most
  // likely.
  int prompt_logprobs = -1;
  SamplingParams sampling;
  std::vector<std::string> stop;       // the text ends before the first of them
  std::vector<TokenId> stop_ids = {};  // further end tokens, which ignore_end does not touch
  bool ignore_end = false;             // go on past the model's end tokens
  int priority = 0;                    // lower ones matter more
  uint64_t client = 0;                 // the client that sent it; clients share the machine
  uint64_t user = 0;                   // one of the client's users, who share what the client gets
  // KV is shared only among requests with the same salt, or among those without one, so that the
  // length of the prefix found in the cache tells nothing about requests with another salt.
  std::string cache_salt = {};
  // When the client sent it, to measure its time in the queue; not set: it is not measured.
  std::chrono::steady_clock::time_point came = {};
  // The question's text or its beginning, if there is one: the answer's length is predicted from
  // it, otherwise from the prompt's tokens.
  std::string asked = {};
  LengthPrediction prediction = {};
};

// A token was generated, or a request ended (then `finish` is set; the last token may come with
// it).
struct GenerationEvent {
  RequestId id{};
  std::optional<TokenId> token;
  // Complete characters that are safe to show; may be empty, or stand for several tokens.
  std::string text;
  std::optional<Logprobs> logprobs;
  // Log-probabilities of the prompt's tokens, in order, from the second on: the first follows
  // nothing.
  std::vector<Logprobs> prompt_logprobs;
  std::optional<FinishReason> finish;
  std::string error;                            // the reason if it ended with kError
  ErrorCode error_code = ErrorCode::kInternal;  // of this error
  bool step_failed = false;  // the whole step failed: the request may succeed if it is sent again
  bool displaced = false;    // with kCancelled: another client's request got its place in the queue
  // With `finish`: tokens of the prompt that were found in the cache when it began.
  int64_t reused_tokens = 0;
  // With `finish`: draft tokens of this request that were right and wrong.
  int64_t draft_accepted = 0, draft_rejected = 0;
};

struct EngineStats {
  int64_t steps = 0;
  int64_t prompt_steps = 0;   // of these, with prompt tokens or tokens computed again
  int64_t prompt_tokens = 0;  // computed in prefill, recomputation after preemption included
  int64_t generated_tokens = 0;
  // Draft tokens: computed before they were sampled, and those that were right.
  int64_t draft_proposed = 0, draft_accepted = 0;
  int64_t reused_tokens = 0;  // tokens found in the cache instead of computed
  // Reused tokens that were loaded from the KV store (kv/kv_store.h).
  int64_t reused_host_tokens = 0, reused_disk_tokens = 0;
  int64_t preemptions = 0;
  int64_t recomputed_tokens = 0;  // tokens computed again after preemptions
  // How often a sequence exceeded its prediction and got a larger reservation, and how many of
  // these sequences were preempted later.
  int64_t predictions_exceeded = 0, exceeded_preemptions = 0;
  double scheduling_s = 0;     // deciding what steps compute
  int64_t sequence_steps = 0;  // running sequences, summed over these steps
  // Swapped layers, whose KV is loaded from host memory in each step: bytes moved while steps ran;
  // loads issued before the step that needed them, and those of them that ended before the step
  // before had ended; how often and how long compute waited for a swapped layer's KV; how often the
  // number of swapped layers changed, and how long all requests stood still for that.
  uint64_t layer_swap_bytes = 0;
  int64_t layer_swaps_ahead = 0, layer_swaps_early = 0;
  int64_t layer_swap_waits = 0;
  double layer_swap_waited_s = 0;
  int64_t layer_swap_changes = 0;
  double layer_swap_changes_s = 0;
};

// The bytes that moved in an interval, and the time spent waiting for them.
struct EngineTraffic {
  double seconds = 0;
  uint64_t to_gpu_bytes = 0, to_host_bytes = 0, disk_read_bytes = 0, disk_write_bytes = 0;
  double stalled_s = 0;          // the device waited for weights, KV or activations
  TransferTable transfers = {};  // since the model was loaded

  EngineTraffic& operator+=(const EngineTraffic& other);
};

// The quality and cost of predicted answer lengths (predict/online_trainer.h).
struct LengthCounts {
  // Answers whose bucket was predicted right, too long, too short.
  uint64_t right = 0, over = 0, under = 0;
  double predicted_tokens = 0, real_tokens = 0;  // sums over these answers
  uint64_t learned = 0, dropped = 0, refused = 0, waiting = 0;
  double predicting_s = 0;  // on the threads that submit requests
  double learning_s = 0;    // on the trainer's thread
};

// The current load of an engine and its KV memory.
struct EngineState {
  int running = 0;
  int waiting = 0;
  // Blocks of KV on the device, in host memory and on disk; free ones may still hold KV that a
  // request can begin with.
  struct Pool {
    int32_t total = 0, free = 0;
  };
  std::vector<Pool> kv = {};
  std::optional<KvStoreStats> store = {};  // set if there is a store
  int swapped_layers = 0;                  // swapped layers
  double kv_expansion = 1;  // device blocks, relative to their number without swapped layers
  std::optional<LengthCounts> lengths = {};  // set if lengths are predicted
  // KV blocks that running requests and the next ones will need at their peak.
  int64_t predicted_blocks = 0;
};

}  // namespace spillway
