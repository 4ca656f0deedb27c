// SPDX-License-Identifier: Apache-2.0
// Describes what a session is going to run, as far as somebody knows.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace spillway {

struct ExpectedRun {
  int64_t tokens = 0;  // of a sequence; 0: Session::context_tokens(0)
  int64_t sequences = 1;
  // These are estimates: tokens of a prompt and of its answer, and requests in all; 0 is unknown.
  // An answer of 1 comes out of the prompt's step, and nothing is decoded.
  int64_t prompt = 0, generated = 0, requests = 0;
  // Answers may differ: these lengths, in tokens, are equally frequent. Empty: all have
  // `generated`.
  std::vector<int64_t> answers = {};
  // The most sequences at work where they may wait for KV memory and be preempted. They share room
  // for what `answers` need, which is less than room for all of `sequences`. 0: they may not wait.
  int64_t at_once = 0;
  // The planner finds how many sequences at once, up to `sequences`, are the fastest.
  bool finds_sequences = false;
  // Host memory that the caller takes for itself, such as for a server's requests and for
  // predicting lengths: it counts within --host-memory.
  uint64_t host_bytes_taken = 0;
  // The settings that decide results are known to somebody already: a plan that is made again
  // because memory was refused may not change them.
  bool results_are_fixed = false;
  // The run begins with no less than this, and with that little only where there is memory for no
  // more; 0: it begins with all of it.
  int64_t least_tokens = 0, least_sequences = 0;
  // A context down to this will do where there is memory for no more; Session::planned_tokens()
  // says which it is. 0: none shorter than `tokens` will do.
  int64_t least_context = 0;
  // Advice on a run that does not fit names these: how short --ctx may make a sequence (0: there is
  // no such option), and the option that asks for fewer sequences.
  int64_t shortest_tokens = 0;
  std::string sequences_option = {};
};

}  // namespace spillway
