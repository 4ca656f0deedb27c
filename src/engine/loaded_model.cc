// SPDX-License-Identifier: Apache-2.0
#include "engine/loaded_model.h"

#include <fmt/core.h>

#include <limits>
#include <utility>

#include "base/checked_math.h"
#include "base/error.h"
#include "base/log.h"
#include "engine/vocabulary_from_files.h"
#include "kv/block_allocator.h"
#include "runtime/weight_mover.h"
#include "storage/model_files.h"

namespace spillway {
namespace {

// Embeddings often have a few more rows than the vocabulary, for matrices of a round size. If they
// have more than that, there is a warning: the tokenizer may be another model's. It is no error, as
// the tokens that it has may be right.
void warn_about_missing_tokens(const std::string& name, int64_t tokens, int64_t rows) {
  const int64_t missing = rows - tokens;
  const bool padded = rows % 32 == 0 && missing <= rows / 32;
  if (missing <= 0 || padded) return;
  log_warning(
      "{}: the tokenizer has {} tokens, the model's embedding {}; answers may have ids that stand "
      "for no text, and the tokenizer may be another model's",
      name, tokens, rows);
}

// Loads the tokenizer if it is usable; without one a model still computes: ids in, ids out.
void load_tokenizer(const ModelFiles& files, LoadedModel& loaded) {
  try {
    Tokenizer tokenizer(vocabulary_from_files(files));
    SPW_CHECK(static_cast<int64_t>(tokenizer.vocab_size()) <= loaded.model.spec.vocab_size,
              kInvalidArgument,
              "{}: the tokenizer has {} tokens, the model's embedding only {}; they do not belong "
              "together",
              files.name, tokenizer.vocab_size(), loaded.model.spec.vocab_size);
    warn_about_missing_tokens(files.name, static_cast<int64_t>(tokenizer.vocab_size()),
                              loaded.model.spec.vocab_size);
    loaded.tokenizer.emplace(std::move(tokenizer));
  } catch (const Error& error) {
    loaded.no_tokenizer_reason = error.what();
  }
}

// Changes the types of the weights in `model` to those that they will have in memory.
void prepare_weights(const Device& device, Model& model, const WeightLoadOptions& options) {
  if (!device.host_visible()) widen_vectors(model);
  if (!options.compress) return;
  const Compression done = compress_matrices(model);
  log_info("{}: {} matrices compressed to {}{}", model.spec.name, done.compressed,
           dtype_name(DType::kG4),
           done.kept == 0 ? ""
                          : fmt::format("; {} stay as they are stored, being quantized already or "
                                        "no whole groups of {} wide",
                                        done.kept, dtype_info(DType::kG4).block_elements));
}

}  // namespace

const Tokenizer& LoadedModel::require_tokenizer(std::string_view advice) const {
  SPW_CHECK(tokenizer.has_value(), kInvalidArgument, "{}{}{}", no_tokenizer_reason,
            advice.empty() ? "" : "; ", advice);
  return *tokenizer;
}

std::optional<std::string> try_dummy_name(const std::string& reference) {
  constexpr std::string_view kPrefix = "dummy:";
  if (!reference.starts_with(kPrefix)) return std::nullopt;
  return reference.substr(kPrefix.size());
}

std::unique_ptr<LoadedModel> describe_for_loading(const Device& device,
                                                  const std::string& reference,
                                                  const WeightLoadOptions& options) {
  auto loaded = std::make_unique<LoadedModel>();
  if (const auto name = try_dummy_name(reference)) {
    loaded->model = describe_dummy_model(*name);
    SPW_CHECK(loaded->model.spec.executable, kUnsupported,
              "{} is known as a shape for planning only; it cannot be run", reference);
    loaded->no_tokenizer_reason = reference + " has no tokenizer";
  } else {
    const ModelFiles files = open_model(reference);
    loaded->model = describe_model(files);
    load_tokenizer(files, *loaded);
    loaded->sampling = suggested_sampling(files.metadata);
    loaded->paths = files.paths;
  }
  prepare_weights(device, loaded->model, options);
  return loaded;
}

void load_weights_of(LoadedModel& loaded, Device& device, const WeightLoadOptions& options,
                     const WeightPlacement& placement, KeptWeights kept) {
  loaded.weights =
      load_weights(device, loaded.model, loaded.paths, options, placement, std::move(kept));
}

KvType default_kv_type(const Model& model) {
  return model.main_dtype() == DType::kF32 ? KvType::kF32 : KvType::kF16;
}

}  // namespace spillway
