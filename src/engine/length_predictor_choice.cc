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
#include "predict/ngram_predictor.h"
#include "predict/predictor_file.h"
#include "predict/simple_predictors.h"

namespace spillway {
namespace {

namespace fs = std::filesystem;

// Nothing is known of the answers yet: from a short sentence to all that there can be.
LengthBuckets usual_buckets(int64_t most_tokens) {
  constexpr double kShort = 16;
  return LengthBuckets::geometric(kShort, std::max(2 * kShort, static_cast<double>(most_tokens)));
}

std::unique_ptr<OnlinePredictor> read_or_fresh(const fs::path& file, int64_t most_tokens) {
  if (auto stored = try_read_predictor(file)) {
    log_info("lengths of answers: {} has learned from {} examples", printable_path(file),
             stored->predictor.examples());
    return std::make_unique<NgramPredictor>(std::move(stored->predictor));
  }
  return std::make_unique<NgramPredictor>(usual_buckets(most_tokens));
}

// Of a model, whatever its file is called: people rename them, and have several of one name.
fs::path kept_file(const fs::path& cache, const std::string& fingerprint) {
  std::string name = fingerprint.substr(0, fingerprint.rfind(' ')).substr(0, 100);
  std::ranges::replace_if(
      name, [](unsigned char c) { return std::isalnum(c) == 0 && c != '.' && c != '-'; }, '_');
  return cache / "lengths" / (name + "-" + digest128(fingerprint).substr(0, 12) + ".predictor");
}

}  // namespace

std::unique_ptr<AnswerLengths> make_answer_lengths(const std::string& choice,
                                                   const std::string& model, int64_t most_tokens) {
  if (choice == kNoLengths) return nullptr;
  const auto make = [&](std::unique_ptr<OnlinePredictor> predictor, const fs::path& kept = {}) {
    return std::make_unique<AnswerLengths>(std::move(predictor), kept, model);
  };
  if (choice == "mean")
    return make(std::make_unique<RunningMeanPredictor>(usual_buckets(most_tokens)));
  if (choice == kBuiltInLengths) {
    const std::optional<fs::path> cache = try_cache_folder();
    if (!cache) return make(std::make_unique<NgramPredictor>(usual_buckets(most_tokens)));
    const fs::path file = kept_file(*cache, model_fingerprint(model));
    return make(read_or_fresh(file, most_tokens), file);
  }
  std::error_code unknown;
  SPW_CHECK(fs::is_regular_file(choice, unknown), kInvalidArgument,
            "--length-predictor {}: no such file; spillway predictor train makes one, or give "
            "auto, mean or off",
            printable_path(choice));
  return make(read_or_fresh(choice, most_tokens));
}

}  // namespace spillway
