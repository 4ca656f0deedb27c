// SPDX-License-Identifier: Apache-2.0
// Flags for scheduling: which predictor of answer lengths is used, and how requests are admitted.
#pragma once

#include <string>

#include "engine/length_predictor_choice.h"
#include "engine/scheduling_options.h"

namespace spillway {

class Command;

struct SchedulingFlags {
  std::string length_predictor = kBuiltInLengths;
  std::string kv_admission;  // "": predicted if lengths are predicted, else whole
  std::string queue_order;

  bool predicts() const { return length_predictor != kNoLengths; }
  // True if only as many requests run as KV has room for at their full length.
  bool admits_whole() const {
    return kv_admission == "whole" || (kv_admission.empty() && !predicts());
  }
  // Throws kInvalidArgument if a flag needs a length predictor and there is none.
  SchedulingOptions options() const;
};

// Adds the flags to commands that answer many concurrent requests; the values must outlive the
// command.
void add_scheduling_flags(Command& command, SchedulingFlags& flags, const std::string& usual_order);

}  // namespace spillway
