// SPDX-License-Identifier: Apache-2.0
// What is asked of an engine and what it says: requests and events. Nothing here knows how a model
// is run.
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

// What is known of an answer before it is there (engine/answer_lengths.h).
struct ForeseenLength {
  int64_t tokens = 0;  // that it is promised room for; 0: nobody predicts
  std::optional<PredictedLength> predicted = {};  // what is to be learned from
};

struct GenerationRequest {
  std::vector<TokenId> prompt;  // not empty
  int max_tokens = 128;         // generated at most; 0 only where the prompt is scored
  int min_tokens = 0;           // generated before an end token, a stop id or a stop text ends it
  // Log-probabilities of the prompt's own tokens: -1 none, 0 of these, n also of the n most likely.
  int prompt_logprobs = -1;
  SamplingParams sampling;
  std::vector<std::string> stop;       // the text ends before the first of them
  std::vector<TokenId> stop_ids = {};  // further end tokens, which ignore_end does not touch
  bool ignore_end = false;             // go on past the model's end tokens
  int priority = 0;                    // lower ones matter more
  uint64_t client = 0;                 // whose it is: clients share what there is
  uint64_t user = 0;                   // of the client's: they share what the client gets
  // KV is shared only among requests with the same salt, and those without one share among
  // themselves: how much of a prompt was found tells nothing about requests with another.
  std::string cache_salt = {};
  // When the client asked, for the time in the queue; not set: it is not measured.
  std::chrono::steady_clock::time_point came = {};
  // The text that is asked, or its beginning, where there is one: the answer's length is predicted
  // from it, and from the prompt's tokens where there is none.
  std::string asked = {};
  ForeseenLength foreseen = {};
};

// A token was generated, or a request ended (then `finish` is set; the last token may come with
// it).
struct GenerationEvent {
  RequestId id{};
  std::optional<TokenId> token;
  std::string
      text;  // complete characters that are safe to show; may be empty, or stand for several tokens
  std::optional<Logprobs> logprobs;
  // Of tokens of the prompt, in order, from the second on: the first follows nothing.
  std::vector<Logprobs> prompt_logprobs;
  std::optional<FinishReason> finish;
  std::string error;                            // why, when it ended with kError
  ErrorCode error_code = ErrorCode::kInternal;  // of that
  bool step_failed = false;  // it was the whole step's: the request may do better another time
  bool displaced = false;    // with kCancelled: another client's request got its place in the queue
  int64_t reused_tokens = 0;  // with `finish`: of the prompt, found in the cache as it began
  int64_t draft_accepted = 0,
          draft_rejected = 0;  // with `finish`: tokens that were proposed for it
};

struct EngineStats {
  int64_t steps = 0;
  int64_t prompt_steps = 0;   // of these, with tokens of prompts, or of what is computed again
  int64_t prompt_tokens = 0;  // computed in prefill, recomputation after preemption included
  int64_t generated_tokens = 0;
  int64_t draft_proposed = 0,
          draft_accepted = 0;  // tokens that were computed before they were drawn
  int64_t reused_tokens = 0;   // found in the cache instead of computed
  int64_t reused_host_tokens = 0, reused_disk_tokens = 0;  // of these, by way of the KV store
  int64_t preemptions = 0;
  int64_t recomputed_tokens = 0;  // after preemptions: computed before, and again
  // Sequences went beyond what was predicted and were promised more; of these, that gave way later.
  int64_t outgrown = 0, outgrown_preemptions = 0;
  double scheduling_s = 0;     // deciding what steps compute
  int64_t sequence_steps = 0;  // sequences at work, summed over these steps
  // Of layers whose KV takes turns on the device: what moved for them while steps ran, how many
  // loads came ahead of their step, and of these before the one before had ended, how often ops
  // waited for one and for how long, how often it was decided anew how many they are, and how long
  // all stood still for that.
  uint64_t turn_bytes = 0;
  int64_t turn_ahead = 0, turn_early = 0;
  int64_t turn_waits = 0;
  double turn_waited_s = 0;
  int64_t turn_changes = 0;
  double turn_changes_s = 0;
};

// What moved, and what was waited for, in some time.
struct EngineTraffic {
  double seconds = 0;
  uint64_t to_gpu_bytes = 0, to_host_bytes = 0, disk_read_bytes = 0, disk_write_bytes = 0;
  double stalled_s = 0;  // the device waited for weights, KV or activations

  EngineTraffic& operator+=(const EngineTraffic& other);
};

// How good predictions of answers' lengths were, and what they cost (predict/online_trainer.h).
struct LengthCounts {
  uint64_t right = 0, over = 0, under = 0;       // of the answers: by their bucket
  double predicted_tokens = 0, real_tokens = 0;  // of these answers
  uint64_t learned = 0, dropped = 0, refused = 0, waiting = 0;
  double predicting_s = 0;  // on clients' threads
  double learning_s = 0;    // on its own
};

// What an engine has to do, and room for.
struct EngineState {
  int running = 0;
  int waiting = 0;
  // Blocks of KV on the device, in host memory and on disk; free ones may still have what a request
  // can begin with.
  struct Pool {
    int32_t total = 0, free = 0;
  };
  std::vector<Pool> kv = {};
  std::optional<KvStoreStats> store = {};    // where there is one
  int turning = 0;                           // layers whose KV takes turns on the device
  double kv_expansion = 1;                   // blocks there by what there would be if all stayed
  std::optional<LengthCounts> lengths = {};  // where somebody predicts
  int64_t predicted_blocks = 0;  // of KV that those at work and those next will need at their peak
};

}  // namespace spillway
