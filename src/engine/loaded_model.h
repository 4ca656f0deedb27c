// SPDX-License-Identifier: Apache-2.0
// A model ready to run on a device: description, weights, tokenizer.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "device/device.h"
#include "engine/suggested_sampling.h"
#include "kv/kv_cache.h"
#include "memory/weight_load_options.h"
#include "model/model.h"
#include "runtime/kept_weights.h"
#include "runtime/model_weights.h"
#include "runtime/weight_placement.h"
#include "text/tokenizer.h"

namespace spillway {

// Owns everything that decoding reads. Made by describe_for_loading(); stays where it is, as
// decoders keep references to it.
struct LoadedModel {
  Model model;
  std::optional<Tokenizer> tokenizer;
  std::string no_tokenizer_reason;  // why, when there is none: ids in and ids out still work
  SuggestedSampling sampling;       // as its makers suggest in the files, if they do
  std::vector<std::filesystem::path> paths;  // of the model's files; none for dummy weights
  ModelWeights weights;

  // Throws kInvalidArgument with the reason where there is none, followed by `advice`.
  const Tokenizer& require_tokenizer(std::string_view advice = "") const;
};

// Loading has two steps, since in between it is decided where the weights go: this one describes
// everything but the weights, in the types they will have in memory; load_weights_of() loads the
// weights. `reference` is a path (GGUF file, Hugging Face folder) or dummy:NAME. The device must
// outlive the result. Throws what reading, describing and loading throw.
std::unique_ptr<LoadedModel> describe_for_loading(const Device& device,
                                                  const std::string& reference,
                                                  const WeightLoadOptions& options);
void load_weights_of(LoadedModel& loaded, Device& device, const WeightLoadOptions& options,
                     const WeightPlacement& placement, KeptWeights kept = {});

// Returns the name after "dummy:", or nullopt for a path.
[[nodiscard]] std::optional<std::string> try_dummy_name(const std::string& reference);

// Returns F32 for models stored in F32, which are small and stored so for exactness, else F16.
KvType default_kv_type(const Model& model);

}  // namespace spillway
