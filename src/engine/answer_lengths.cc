// SPDX-License-Identifier: Apache-2.0
#include "engine/answer_lengths.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/printable.h"
#include "base/stopwatch.h"
#include "predict/predictor_training.h"

namespace spillway {
namespace {

// A predictor that has learned from fewer answers than this is not trusted: an answer is then
// expected to have kUsualAnswer tokens.
constexpr uint64_t kFewest = 16;
// Each answer is learned together with some earlier ones, which count as examples, too.
constexpr uint64_t kFewestExamples = kFewest * (1 + OnlineTrainerOptions::kUsualReplays);
constexpr int64_t kUsualAnswer = 256;

OnlineTrainerOptions trainer_options(const std::filesystem::path& file, const std::string& model) {
  OnlineTrainerOptions options;
  if (file.empty()) return options;
  options.keep = [file, model, has_warned = false](const OnlinePredictor& predictor) mutable {
    try {
      std::filesystem::create_directories(file.parent_path());
      if (predictor.try_write(file, model)) return;
    } catch (const std::exception& error) {
      if (!std::exchange(has_warned, true))
        log_warning("{}: what was learned of answers' lengths is not kept: {}",
                    printable_path(file), error.what());
    }
  };
  return options;
}

}  // namespace

AnswerLengths::AnswerLengths(std::unique_ptr<OnlinePredictor> predictor,
                             const std::filesystem::path& file, const std::string& model)
    : trainer_(std::move(predictor), trainer_options(file, model)) {}

bool AnswerLengths::is_untrained() const { return trainer_.examples() < kFewestExamples; }

int64_t AnswerLengths::mean_tokens(const std::string& text, int64_t most_tokens) const {
  if (is_untrained()) return std::min(kUsualAnswer, most_tokens);
  return std::llround(
      trainer_.predict({.text = text, .most_tokens = most_tokens}).distribution.mean());
}

void AnswerLengths::predict(GenerationRequest& request) const {
  const std::string text = std::exchange(request.asked, {});
  if (request.max_tokens <= 0) return;
  if (request.ignore_end && request.stop.empty() && request.stop_ids.empty()) {
    // Only its limit ends the answer.
    request.prediction = {.tokens = request.max_tokens};
    return;
  }
  const Stopwatch watch;
  PredictedLength predicted =
      trainer_.predict({.text = text, .tokens = request.prompt, .most_tokens = request.max_tokens});
  const int64_t tokens = is_untrained() ? std::min<int64_t>(kUsualAnswer, request.max_tokens)
                                        : predicted.distribution.quantile(kReservedQuantile);
  request.prediction = {.tokens = std::max<int64_t>(tokens, request.min_tokens),
                        .predicted = std::move(predicted)};
  predicting_ns_ += std::llround(watch.seconds() * 1e9);
}

void AnswerLengths::ended(GenerationRequest& request, int64_t tokens, FinishReason reason) {
  std::optional<PredictedLength> predicted = std::move(request.prediction.predicted);
  if (!predicted || tokens <= 0) return;
  // The length that would be predicted without a limit.
  const int64_t said = predicted->distribution.up_to(0).quantile(kReservedQuantile);
  const bool teaches = reason == FinishReason::kStop ||
                       (reason == FinishReason::kLength && (tokens >= said || is_untrained()));
  if (teaches) trainer_.finished(std::move(*predicted), tokens);
}

LengthCounts AnswerLengths::counts() const {
  const OnlineTrainerCounts of = trainer_.counts();
  return {.right = of.right,
          .over = of.over,
          .under = of.under,
          .predicted_tokens = of.predicted_tokens,
          .real_tokens = of.real_tokens,
          .learned = of.learned,
          .dropped = of.dropped,
          .refused = of.refused,
          .waiting = of.waiting,
          .predicting_s = static_cast<double>(predicting_ns_.load()) / 1e9,
          .learning_s = of.learning_s};
}

}  // namespace spillway
