// SPDX-License-Identifier: Apache-2.0
// Options of a session: the model, the device, the types, the placement.
#pragma once

#include <string>

#include "engine/compute_options.h"
#include "engine/draft_options.h"
#include "engine/kv_store_options.h"
#include "engine/placement_options.h"
#include "engine/tuning_options.h"

namespace spillway {

// Plain values, which the program takes from a command line or a file. Errors name them as the
// command line does: --gpu-memory.
struct SessionOptions {
  std::string model;            // as resolve_model() takes it
  std::string device = "auto";  // this, memory and threads: as in DeviceChoice
  std::string gpu_memory;       // "" = what is free
  std::string threads = "0";
  bool deterministic = false;
  bool no_mmap = false;
  ComputeOptions compute;
  TuningOptions tuning;
  PlacementOptions placement;
  KvStoreOptions kv_store;
  DraftOptions drafts;
};

}  // namespace spillway
