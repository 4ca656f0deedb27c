// SPDX-License-Identifier: Apache-2.0
// Describes what a session is going to run, as far as the caller knows.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace spillway {

struct ExpectedRun {
  int64_t tokens = 0;  // in a sequence; 0: Session::context_tokens(0)
  int64_t sequences = 1;
  // Estimates: tokens of a prompt, tokens of its answer, and the number of all requests; 0 is
  // unknown. An answer of 1 token is sampled in the prompt's step, and nothing is decoded.
  int64_t prompt = 0, generated = 0, requests = 0;
  // Answers may differ: these lengths, in tokens, are equally frequent. Empty: all have
  // `generated`.
  std::vector<int64_t> answers = {};
  // The most concurrent sequences if sequences may wait for KV memory and be preempted. They share
  // room for the lengths in `answers`, which is less than room for `sequences` of full length. 0:
  // they may not wait.
  int64_t max_concurrent = 0;
  // The planner finds how many concurrent sequences, up to `sequences`, are the fastest.
  bool finds_sequences = false;
  // Host memory that the caller takes for itself, such as for a server's requests and for
  // predicting lengths: it counts within --host-memory.
  uint64_t host_bytes_taken = 0;
  // The settings that decide results are part of a job's identity, which is already fixed: a plan
  // that is made again because memory was refused may not change them.
  bool results_are_fixed = false;
  // The run starts with at least these, and with so few only if memory does not suffice for more;
  // 0: it starts with all of them.
  int64_t least_tokens = 0, least_sequences = 0;
  // A context as short as this is acceptable if memory does not suffice for more;
  // Session::planned_tokens() returns the one that was chosen. 0: none shorter than `tokens` is.
  int64_t least_context = 0;
  // Suggestions for a run that does not fit use these: the shortest --ctx that makes sense (0:
  // there is no such option), and the option that sets a smaller number of sequences.
  int64_t shortest_tokens = 0;
  std::string sequences_option = {};
};

}  // namespace spillway
