// SPDX-License-Identifier: Apache-2.0
// What a session is going to run, as far as somebody knows.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace spillway {

struct ExpectedRun {
  int64_t tokens = 0;  // of a sequence; 0: Session::context_tokens(0)
  int64_t sequences = 1;
  // About: tokens of a prompt and of its answer, requests in all. 0: nobody knows. An answer of 1
  // comes out of the prompt's step: nothing is decoded.
  int64_t prompt = 0, generated = 0, requests = 0;
  // Where answers differ: their tokens, each of as many requests as another. Empty: `generated`.
  std::vector<int64_t> answers = {};
  // Where sequences may wait for KV memory and be preempted: most of them at work. They may then
  // share what `answers` need, which is less than room for all of `sequences`. 0: they may not.
  int64_t at_once = 0;
  // As many sequences at once, up to `sequences`, as are the fastest.
  bool finds_sequences = false;
  // Host memory that the caller takes for itself, such as for a server's requests and for
  // predicting lengths: it counts within --host-memory.
  uint64_t host_bytes_taken = 0;
  // Who it is for knows by what settings results come about: memory that is refused may not change
  // them.
  bool results_are_fixed = false;
  // What it does not begin without; 0: all of it. Where there is memory for no more, it begins with
  // less.
  int64_t least_tokens = 0, least_sequences = 0;
  // Where there is memory for no more, a context down to this will do (0: for no less than
  // `tokens`); Session::planned_tokens() says which.
  int64_t least_context = 0;
  // For advice where it does not fit: how short --ctx may make a sequence (0: there is no such
  // option), and which option asks for fewer sequences.
  int64_t shortest_tokens = 0;
  std::string sequences_option = {};
};

}  // namespace spillway
