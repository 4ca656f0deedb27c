// SPDX-License-Identifier: Apache-2.0
// The options of a session on the command line. Each of these adds some of them to a command, which
// must not outlive the values.
#pragma once

#include "engine/session_options.h"

namespace spillway {

class Command;

// MODEL and the options that all commands with a session share.
void add_session_flags(Command& command, SessionOptions& options, bool several_plans = false);
// Of these, for commands that need no more: where to compute, and how weights get there.
void add_device_flags(Command& command, SessionOptions& options);
void add_loading_flags(Command& command, SessionOptions& options);
// What to compute with.
void add_compress_weights_flag(Command& command, ComputeOptions& options);
void add_compute_flags(Command& command, ComputeOptions& options);
// Where KV goes on living, for commands that use it again.
void add_kv_store_flags(Command& command, KvStoreOptions& options);
// For commands that answer many requests at once.
void add_kv_expansion_flag(Command& command, PlacementOptions& options);
// For commands that measure or estimate a run, in which the number of swapped layers is fixed.
void add_swapped_layers_flag(Command& command, PlacementOptions& options);
// What goes where, without memories: for a command that has its own.
void add_plan_flags(Command& command, PlacementOptions& options, bool several_plans);

}  // namespace spillway
