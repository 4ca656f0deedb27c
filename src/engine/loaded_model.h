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
#include "runtime/model_weights.h"
#include "text/tokenizer.h"

namespace spillway {

// Owns everything that decoding reads. Made by load_model(); stays where it is, as decoders keep
// references to it.
struct LoadedModel {
  Model model;
  std::optional<Tokenizer> tokenizer;
  std::string no_tokenizer_reason;  // why, when there is none: ids in and ids out still work
  SuggestedSampling sampling;       // by its makers, where they say something
  std::vector<std::filesystem::path> paths;  // of the model's files; none for dummy weights
  ModelWeights weights;

  // Throws kInvalidArgument with the reason where there is none.
  const Tokenizer& require_tokenizer() const;
};

// `reference` is a path (GGUF file, Hugging Face folder) or dummy:NAME. The device must outlive the
// result. Throws what reading, describing and loading throw.
std::unique_ptr<LoadedModel> load_model(Device& device, const std::string& reference,
                                        const WeightLoadOptions& options);
// The same in two steps, for those who decide in between where the weights go: everything but the
// weights, in the types they will have in memory; then the weights.
std::unique_ptr<LoadedModel> describe_for_loading(const Device& device,
                                                  const std::string& reference,
                                                  const WeightLoadOptions& options);
void load_weights_of(LoadedModel& loaded, Device& device, const WeightLoadOptions& options,
                     const WeightPlacement& placement);

// The name behind "dummy:", or nullopt for a path.
[[nodiscard]] std::optional<std::string> try_dummy_name(const std::string& reference);

// F32 for models stored in F32 (they are small, and exactness is why they are), else F16.
KvType default_kv_type(const Model& model);

// Room for `sequences` sequences of `tokens` tokens each.
KvCache make_kv_cache(Device& device, const ModelSpec& spec, KvType type, int64_t tokens,
                      int64_t sequences = 1);

}  // namespace spillway
