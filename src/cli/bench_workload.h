// SPDX-License-Identifier: Apache-2.0
// FlexGen's workload: synthetic prompts of one length, all at once, prefill and decode timed apart.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "cli/session.h"
#include "text/vocabulary.h"

namespace spillway {

struct WorkloadSize {
  int prompt_len = 512;
  int gen_len = 32;
  int batch = 1;
  int steps = 0;  // of decoding, at most; 0: gen_len - 1
};

struct WorkloadTiming {
  double prefill_s = 0;
  double decode_s = 0;  // of gen_len - 1 steps; extrapolated where fewer were run
  int steps = 0;        // that were run
  DecoderStats prefill, decode;
};

// The same greedy loop that the engine runs, without its bookkeeping, so that the figures are those
// of the decoder. Like the engine it queues a step before it has seen the tokens of the one before,
// where the decoder takes that.
class Workload {
 public:
  Workload(const WorkloadSize& size, Session& session);

  // nullopt when interrupted.
  std::optional<WorkloadTiming> run();
  // Of all runs.
  const AttentionTraffic& attention_traffic() const { return runner_.decoder.attention_traffic(); }

 private:
  bool prefill();
  bool decode(int steps);
  bool decode_ahead(int steps);
  // The newest token of sequences [begin, end) in a step of decoding.
  std::vector<StepSequence> newest(size_t begin, size_t end, int step) const;
  std::vector<TokenId> take_drawn(uint64_t draw);
  // Throws kInternal for one that is none.
  void check_drawn(std::span<const TokenId> ids);
  std::vector<TokenId> greedy(const Activations& logits);
  std::vector<TokenId> step(const std::vector<StepSequence>& sequences);

  WorkloadSize size_;
  Runner runner_;
  size_t group_;  // sequences that decode in one step
  std::vector<std::vector<int32_t>> tables_;
  std::vector<std::vector<TokenId>> prompts_;
  std::vector<TokenId> next_;  // the newest token of each sequence
};

}  // namespace spillway
