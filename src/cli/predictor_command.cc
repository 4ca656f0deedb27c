// SPDX-License-Identifier: Apache-2.0
// spillway predictor: trains and tests predictors of answer lengths on existing prompts and
// answers.
#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include <charconv>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <system_error>

#include "base/error.h"
#include "base/printable.h"
#include "base/stopwatch.h"
#include "cli/command_line.h"
#include "cli/commands.h"
#include "cli/encoder_option.h"
#include "cli/interrupt.h"
#include "cli/json_output.h"
#include "cli/terminal.h"
#include "cli/value_check.h"
#include "engine/model_catalog.h"
#include "engine/vocabulary_from_files.h"
#include "predict/encoder_predictor.h"
#include "predict/length_data.h"
#include "predict/predictor_file.h"
#include "predict/predictor_training.h"
#include "storage/model_files.h"
#include "text/tokenizer.h"

namespace spillway {
namespace {

using nlohmann::json;

constexpr const char* kDataHelp =
    "prompts with answers: Alpaca's JSON (instruction, input, output), ShareGPT's (conversations), "
    "or JSON lines with prompt and output, or prompt and tokens";

struct PredictorOptions {
  std::string data;
  std::string model;
  std::string encoder;            // a folder; empty: no encoder
  std::string output;             // for train
  std::string buckets = "equal";  // for train
  std::string predictor;          // for eval
  EvaluationOptions evaluation;   // for eval
  bool json = false;
};

LengthData read_data(const PredictorOptions& options) {
  const Tokenizer tokenizer(vocabulary_from_files(open_tokenizer(resolve_model(options.model))));
  return read_length_data(options.data, tokenizer);
}

LengthBuckets buckets_of(const std::string& name, const LengthData& data) {
  if (name == "equal") return LengthBuckets::equal_frequency(lengths_of(data.examples));
  return LengthBuckets::linear(std::stod(name));
}

PredictorMaker maker_of(const PredictorOptions& options) {
  if (options.encoder.empty()) {
    return [](const LengthBuckets& buckets) { return std::make_unique<NgramPredictor>(buckets); };
  }
  return [encoder = open_encoder(options.encoder)](const LengthBuckets& buckets) {
    return std::make_unique<EncoderPredictor>(buckets, encoder);
  };
}

// Returns alpaca.predictor, in the current folder, for /data/alpaca.json.
std::string default_output(const std::string& data) {
  return std::filesystem::path(data).stem().string() + ".predictor";
}

int train_and_write(PredictorOptions options) {
  if (options.output.empty()) options.output = default_output(options.data);
  const PredictorMaker make = maker_of(options);
  const LengthData data = read_data(options);
  const Stopwatch watch;
  const std::unique_ptr<OnlinePredictor> predictor = make(buckets_of(options.buckets, data));
  train(*predictor, data.examples, &interrupted());
  const double seconds = watch.seconds();
  SPW_ASSERT(predictor->try_write(options.output, options.model));
  if (options.json) {
    print_json({{"examples", data.examples.size()},
                {"without_answer", data.without_answer},
                {"edges", predictor->buckets().edges()},
                {"seconds", seconds},
                {"file", options.output}});
  } else {
    print_now(fmt::format("learned from {} answers ({} prompts had none) in {:.1f} s: {}\n",
                          data.examples.size(), data.without_answer, seconds,
                          printable_path(options.output)));
  }
  return 0;
}

json score_json(const PredictorScore& score) {
  return {{"accuracy", score.linear.accuracy},
          {"majority_accuracy", score.linear.majority_accuracy},
          {"bucket_distance", score.linear.mean_distance},
          {"wrong_bucket_distance", score.linear.wrong_distance},
          {"equal_frequency_accuracy", score.equal_frequency.accuracy},
          {"equal_frequency_majority_accuracy", score.equal_frequency.majority_accuracy},
          {"equal_frequency_bucket_distance", score.equal_frequency.mean_distance},
          {"paper_accuracy", score.paper.accuracy},
          {"paper_majority_accuracy", score.paper.majority_accuracy},
          {"paper_bucket_distance", score.paper.mean_distance},
          {"reserved_enough", score.reserved_enough},
          {"reserved_tokens", score.reserved_tokens},
          {"us_per_prediction", score.us_per_prediction},
          {"mean_tokens", score.mean_tokens},
          {"examples", score.examples}};
}

std::string score_line(const std::string& buckets, const BucketScore& score) {
  return fmt::format("{:<30} {:>7.2f}% {:>7.2f}% {:>8.2f} {:>9.2f}\n", buckets,
                     100 * score.accuracy, 100 * score.majority_accuracy,
                     score.accuracy / score.majority_accuracy, score.mean_distance);
}

int evaluate_predictor(const PredictorOptions& options) {
  const LengthData data = read_data(options);
  EvaluationOptions evaluation = options.evaluation;
  evaluation.cancel = &interrupted();
  // If the file is damaged, try_read_predictor() reports that and returns nullopt; the data is then
  // cross-validated as if no file were given.
  auto stored = options.predictor.empty() ? std::nullopt : [&] {
    const bool is_there = std::filesystem::exists(options.predictor) &&
                          !std::filesystem::is_directory(options.predictor);
    SPW_CHECK(is_there, kInvalidArgument, "{}: no such file; spillway predictor train makes one",
              printable_path(options.predictor));
    return try_read_predictor(options.predictor);
  }();
  PredictorScore score;
  std::string trained_for;
  if (stored) {
    trained_for = stored->model;
    score =
        evaluate(data.examples, *predictor_of(*std::move(stored), open_any_encoder), evaluation);
  } else {
    evaluation.make = maker_of(options);
    score = cross_validate(data.examples, evaluation);
  }
  if (options.json) {
    json result = score_json(score);
    result["max_length"] = evaluation.most_tokens;
    result["without_answer"] = data.without_answer;
    result["folds"] = stored ? json(nullptr) : json(evaluation.folds);
    if (stored) result["trained_for"] = trained_for;
    print_json(result);
    return 0;
  }
  print_now(
      fmt::format("{:<30} {:>8} {:>8} {:>8} {:>9}\n", "buckets", "right", "majority", "ratio",
                  "distance") +
      score_line(fmt::format("10 of {:.4g} tokens", evaluation.most_tokens / 10), score.linear) +
      score_line("10 of 204.8 tokens (S3)", score.paper) +
      score_line("10 of equal frequency", score.equal_frequency) +
      fmt::format("{} answers of {:.1f} tokens, {:.1f} us a prediction\n", score.examples,
                  score.mean_tokens, score.us_per_prediction));
  return 0;
}

void add_data_and_model(Command& command, PredictorOptions& options) {
  command.add_option("DATA", options.data, kDataHelp)->required()->basic();
  command
      .add_option("-m,--model", options.model,
                  "whose tokens are counted: a model, a vocabulary-only GGUF, or a folder with "
                  "tokenizer.json")
      ->required()
      ->placeholder("MODEL")
      ->basic();
  command
      .add_option("--encoder", options.encoder,
                  "a folder with a BERT or DistilBERT (config.json, tokenizer.json or vocab.txt, "
                  "model.safetensors), whose embeddings are learned from beside the prompt's "
                  "words; scripts/fetch_model.sh minilm fetches one")
      ->placeholder("DIR");
  command.add_flag("--json", options.json, "print one line of JSON")
      ->group(HelpGroup::kOutput)
      ->basic();
}

void add_train(Command& parent) {
  auto* command =
      parent.add_subcommand("train", "learn from prompts and answers, and write a file");
  auto options = std::make_shared<PredictorOptions>();
  add_data_and_model(*command, *options);
  command->add_option("-o,--output", options->output, "file to write the predictor to")
      ->placeholder("FILE")
      ->default_text("DATA's name with .predictor, in this folder")
      ->group(HelpGroup::kOutput)
      ->basic();
  command
      ->add_option("--buckets", options->buckets,
                   "equal: ten with a tenth of the answers each; a number: ten of equal width up "
                   "to this many tokens")
      ->check(ValueCheck(
          [](const std::string& value) -> std::string {
            double most = 0;
            const char* const end = value.data() + value.size();
            const auto [read, error] = std::from_chars(value.data(), end, most);
            const bool is_number = error == std::errc() && read == end && most >= 10 && most <= 1e9;
            return value == "equal" || is_number ? "" : "neither equal nor tokens (10 and more)";
          },
          "equal|N"));
  command->example("spillway predictor train alpaca.json --model smollm2 -o lengths.predictor");
  command->action([options] { return train_and_write(*options); });
}

void add_eval(Command& parent) {
  auto* command = parent.add_subcommand("eval", "measure how often the right bucket is predicted");
  auto options = std::make_shared<PredictorOptions>();
  add_data_and_model(*command, *options);
  command->add_option("--predictor", options->predictor, "a trained file, scored on all of DATA")
      ->excludes(command->get_option("--encoder"))
      ->placeholder("FILE")
      ->default_text(
          "DATA is split by a hash of the instruction, and each part is predicted by what the "
          "others taught")
      ->basic();
  command
      ->add_option("--max-length", options->evaluation.most_tokens,
                   "the buckets of accuracy are a tenth of this wide")
      ->check(in_range(10.0, 1e9))
      ->placeholder("N");
  command->add_option("--folds", options->evaluation.folds, "parts of the split")
      ->check(in_range(2, 100));
  command->example("spillway predictor eval alpaca.json --model smollm2 --json");
  command->action([options] { return evaluate_predictor(*options); });
}

}  // namespace

void add_predictor_command(Command& app) {
  auto* command =
      app.add_subcommand("predictor", "train and test what predicts how long answers will be");
  command->require_subcommand();
  add_train(*command);
  add_eval(*command);
  add_embed_command(*command);
}

}  // namespace spillway
