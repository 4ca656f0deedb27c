// SPDX-License-Identifier: Apache-2.0
// Foresight on the command line: who predicts answers' lengths, and what is made of it.
#pragma once

#include <string>

#include "engine/length_predictor_choice.h"
#include "engine/scheduling_options.h"

namespace spillway {

class Command;

struct SchedulingFlags {
  std::string length_predictor = kBuiltInLengths;
  std::string kv_admission;  // "": predicted where somebody predicts, else whole
  std::string queue_order;

  bool predicts() const { return length_predictor != kNoLengths; }
  // Whether no more requests are at work than KV has room for, were all as long as they may be.
  bool admits_whole() const {
    return kv_admission == "whole" || (kv_admission.empty() && !predicts());
  }
  // Throws kInvalidArgument for what needs a predictor, where there is none.
  SchedulingOptions options() const;
};

// For commands that answer many requests at once; the values must outlive the command.
void add_scheduling_flags(Command& command, SchedulingFlags& flags, const std::string& usual_order);

}  // namespace spillway
