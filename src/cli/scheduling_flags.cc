// SPDX-License-Identifier: Apache-2.0
#include "cli/scheduling_flags.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <system_error>

#include "base/error.h"
#include "cli/command_line.h"
#include "cli/value_check.h"

namespace spillway {
namespace {

constexpr auto kSchedulingGroup = "Scheduling";
constexpr auto kTokenPace = "--token-pace";

bool is_number(const std::string& word) {
  double number = 0;
  const char* const end = word.data() + word.size();
  const auto [read, error] = std::from_chars(word.data(), end, number);
  return error == std::errc() && read == end;
}

const std::map<std::string, OrderKind>& orders() {
  static const std::map<std::string, OrderKind> all = {{"first", OrderKind::kFirstCome},
                                                       {"fair", OrderKind::kFair},
                                                       {"shortest", OrderKind::kShortest},
                                                       {"longest", OrderKind::kLongest}};
  return all;
}

}  // namespace

SchedulingOptions SchedulingFlags::options() const {
  const OrderKind order = orders().at(queue_order);
  SPW_CHECK(predicts() || (order != OrderKind::kShortest && order != OrderKind::kLongest),
            kInvalidArgument,
            "--queue-order {} goes by predicted lengths; leave out "
            "--length-predictor off, or give fair or first",
            queue_order);
  SPW_CHECK(predicts() || kv_admission != "predicted", kInvalidArgument,
            "--kv-admission predicted needs somebody who predicts; leave out --length-predictor "
            "off, or give whole or room");
  return {.order = order,
          .packs_predicted = predicts() && (kv_admission.empty() || kv_admission == "predicted"),
          .token_pace_s = token_pace_s};
}

void add_scheduling_flags(Command& command, SchedulingFlags& flags,
                          const std::string& usual_order) {
  flags.queue_order = usual_order;
  command
      .add_option("--length-predictor", flags.length_predictor,
                  "who says how long answers will be: auto (built in; learns as answers end, and "
                  "keeps it beside the model's name in the cache folder), mean (as the answers "
                  "before), off, a file of spillway predictor train, which stays as it is, or a "
                  "folder with an encoder (docs/scheduling.md)")
      ->capture_default_str()
      ->group(kSchedulingGroup);
  command
      .add_option("--kv-admission", flags.kv_admission,
                  "how much KV memory there must be before a request begins: predicted (for all at "
                  "work as long as they will be; default), room (for what is known of it), whole "
                  "(no more requests than would fit if all were as long as they may be; default "
                  "with --length-predictor off)")
      ->check(one_of({"predicted", "room", "whole"}))
      ->group(kSchedulingGroup);
  command
      .add_option("--queue-order", flags.queue_order,
                  "who begins first: fair (clients share), first (come), shortest (predicted "
                  "answer: the least mean wait) or longest (packs best)")
      ->check(one_of({"fair", "first", "shortest", "longest"}))
      ->capture_default_str()
      ->group(kSchedulingGroup);
  command
      .add_option(kTokenPace, flags.token_pace_s,
                  fmt::format("no more requests at work than get a token each in so many seconds; "
                              "without a number {}: as fast as people read (not given: any "
                              "number of requests)",
                              PacedAdmission::kReadingSpeed))
      ->check(in_range(1e-6, 1e6))
      ->option_text("[SECONDS]")
      ->group(kSchedulingGroup);
}

std::vector<std::string> with_usual_pace(const Command& app, std::vector<std::string> arguments) {
  const auto has_flags = [&](const std::string& word) {
    const Command* const command = app.find_subcommand(word);
    return command != nullptr && command->has_option(kTokenPace);
  };
  const auto command = std::ranges::find_if(
      arguments, [](const std::string& word) { return !word.starts_with('-'); });
  if (command == arguments.end() || !has_flags(*command)) return arguments;
  const auto end = std::find(command, arguments.end(), "--");
  for (auto word = command; word != end; ++word) {
    if (*word != kTokenPace || (word + 1 != end && is_number(word[1]))) continue;
    *word = fmt::format("{}={}", kTokenPace, PacedAdmission::kReadingSpeed);
  }
  return arguments;
}

}  // namespace spillway
