// SPDX-License-Identifier: Apache-2.0
// Flags of a session. Each function adds some of them to a command, which must not outlive the
// values.
#pragma once

#include "engine/session_options.h"

namespace spillway {

class Command;

// Adds MODEL and the options that all commands with a session share.
void add_session_flags(Command& command, SessionOptions& options, bool several_plans = false);
// Add only a part of these, for commands that need no more: the device, and how weights are loaded.
void add_device_flags(Command& command, SessionOptions& options);
void add_loading_flags(Command& command, SessionOptions& options);
// Add the options of computing: types, sparse attention, tokens per step.
void add_compress_weights_flag(Command& command, ComputeOptions& options);
void add_compute_flags(Command& command, ComputeOptions& options);
// Adds the options of KV stores, which keep KV blocks for later requests, for commands that reuse
// KV.
void add_kv_store_flags(Command& command, KvStoreOptions& options);
// Adds --kv-expansion for commands that answer many concurrent requests: how many layers are
// swapped, so that their KV lives in host memory and is on the device only for their part of a
// step.
void add_kv_expansion_flag(Command& command, PlacementOptions& options);
// Adds --kv-expansion for commands that measure or estimate a run, in which the number of swapped
// layers is fixed.
void add_swapped_layers_flag(Command& command, PlacementOptions& options);
// Adds the options of placement without those of memory sizes, for a command that has its own.
void add_plan_flags(Command& command, PlacementOptions& options, bool several_plans);

}  // namespace spillway
