// SPDX-License-Identifier: Apache-2.0
#include "engine/length_predictor_choice.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

#include "base/digest.h"
#include "base/error.h"
#include "base/log.h"
#include "base/printable.h"
#include "engine/cache_folder.h"
#include "engine/model_fingerprint.h"
#include "predict/encoder_predictor.h"
#include "predict/ngram_predictor.h"
#include "predict/predictor_file.h"
#include "predict/simple_predictors.h"

namespace spillway {
namespace {

namespace fs = std::filesystem;

std::optional<StoredPredictor> try_read(const fs::path& file) {
  auto stored = try_read_predictor(file);
  if (stored) {
    log_info("lengths of answers: {} has learned from {} examples", printable_path(file),
             stored->predictor.examples());
  }
  return stored;
}

std::unique_ptr<OnlinePredictor> read_or_fresh(const fs::path& file, int64_t most_tokens,
                                               const EncoderOpener& open_encoder) {
  if (auto stored = try_read(file)) return predictor_of(*std::move(stored), open_encoder);
  return std::make_unique<NgramPredictor>(LengthBuckets::of_unknown(most_tokens));
}

// A predictor that was kept while contexts were shorter cannot predict answers longer than those,
// and is not used.
std::optional<StoredPredictor> try_read_kept(const fs::path& file, int64_t most_tokens) {
  auto stored = try_read(file);
  if (!stored) return std::nullopt;
  const double longest = stored->predictor.buckets().edges().back();
  if (longest >= LengthBuckets::of_unknown(most_tokens).edges().back()) return stored;
  log_info("lengths of answers: {} knows none beyond {:.0f} tokens; it is begun anew",
           printable_path(file), longest);
  return std::nullopt;
}

// Returns the file for a model's predictor, by name and digest: people have several of one name.
// Empty where there is no cache folder. `encoder`: its digest, if there is one.
fs::path kept_file(const std::string& model, const std::string& encoder = "") {
  const std::optional<fs::path> cache = try_cache_folder();
  if (!cache) return {};
  const std::string fingerprint = model_fingerprint(model);
  std::string name = fingerprint.substr(0, fingerprint.rfind(' ')).substr(0, 100);
  std::ranges::replace_if(
      name, [](unsigned char c) { return std::isalnum(c) == 0 && c != '.' && c != '-'; }, '_');
  const std::string digits = digest128(fingerprint + encoder).substr(0, 12);
  return *cache / "lengths" / (name + "-" + digits + ".predictor");
}

// Prefers what was learned while serving to what was trained.
std::unique_ptr<OnlinePredictor> with_encoder(const fs::path& folder, const fs::path& kept,
                                              std::shared_ptr<const PromptEncoder> encoder,
                                              int64_t most_tokens) {
  auto stored = kept.empty() ? std::nullopt : try_read_kept(kept, most_tokens);
  if (!stored) stored = try_read(folder / kTrainedInFolder);
  if (stored) return std::make_unique<EncoderPredictor>(*std::move(stored), std::move(encoder));
  return std::make_unique<EncoderPredictor>(LengthBuckets::of_unknown(most_tokens),
                                            std::move(encoder));
}

}  // namespace

std::unique_ptr<AnswerLengths> make_answer_lengths(const std::string& choice,
                                                   const std::string& model, int64_t most_tokens,
                                                   const EncoderOpener& open_encoder) {
  if (choice == kNoLengths) return nullptr;
  const auto make = [&](std::unique_ptr<OnlinePredictor> predictor, const fs::path& kept = {}) {
    return std::make_unique<AnswerLengths>(std::move(predictor), kept, model);
  };
  if (choice == "mean")
    return make(std::make_unique<RunningMeanPredictor>(LengthBuckets::of_unknown(most_tokens)));
  if (choice == kBuiltInLengths) {
    const fs::path file = kept_file(model);
    if (file.empty())
      return make(std::make_unique<NgramPredictor>(LengthBuckets::of_unknown(most_tokens)));
    auto kept = try_read_kept(file, most_tokens);
    return make(kept ? predictor_of(*std::move(kept), open_encoder)
                     : std::make_unique<NgramPredictor>(LengthBuckets::of_unknown(most_tokens)),
                file);
  }
  std::error_code unknown;
  if (fs::is_directory(choice, unknown)) {
    auto encoder = open_encoder(choice);
    const fs::path file = kept_file(model, encoder->digest());
    return make(with_encoder(choice, file, std::move(encoder), most_tokens), file);
  }
  SPW_CHECK(fs::is_regular_file(choice, unknown), kInvalidArgument,
            "--length-predictor {}: no such file or folder; spillway predictor train makes one, or "
            "give auto, mean or off",
            printable_path(choice));
  return make(read_or_fresh(choice, most_tokens, open_encoder));
}

}  // namespace spillway
