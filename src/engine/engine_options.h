// SPDX-License-Identifier: Apache-2.0
// Options of an engine: its limits and policies, and the objects that it uses.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "engine/draft_options.h"
#include "engine/scheduling_options.h"
#include "kv/kv_stores.h"
#include "schedule/admission.h"

namespace spillway {

class AnswerLengths;

struct EngineOptions {
  int max_step_tokens = 0;  // 0: as many as the decoder takes
  // The most prompt tokens in a step in which other sequences generate; 0: no limit but
  // max_step_tokens.
  int max_prompt_tokens = 0;
  AdmissionPolicy admission = {};
  SchedulingOptions scheduling = {};
  // Predicts how long answers will be and learns from them; null: lengths are not predicted. Must
  // outlive the engine.
  AnswerLengths* lengths = nullptr;
  int64_t max_sequence_tokens = 0;  // prompt and answer; 0: what the context and the cache allow
  // A prefix that several requests have in common is computed once, as long as its blocks stay.
  bool reuse_prefixes = false;
  // All that the bits of KV depend on besides the model's name and the type of KV
  // (Session::kv_salt()).
  std::string kv_salt = {};
  // With reuse_prefixes: blocks that the pools evict are copied to these stores and loaded from
  // them again. Empty: evicted KV is computed again. The stores must outlive the engine.
  KvStores store = {};
  // Draft tokens, which are proposed if a step with more tokens costs little more.
  DraftOptions drafts = {};
  DraftCosts draft_costs = {};
  // The number of swapped layers, whose KV lives in host memory and is on the device only for their
  // part of a step, is adapted while serving, where the cache allows it; otherwise it stays as it
  // is.
  bool adapts_swapped_layers = false;
  // Returns the time in seconds by which steps are measured, for a device with a time of its own;
  // null: the machine's clock.
  std::function<double()> clock = {};
};

}  // namespace spillway
