// SPDX-License-Identifier: Apache-2.0
#include "cli/sampling_options.h"

#include <fmt/core.h>

#include <charconv>
#include <limits>
#include <random>
#include <string_view>

#include "base/error.h"
#include "cli/command_line.h"
#include "cli/value_check.h"

namespace spillway {
namespace {

template <class T>
bool parse_whole(std::string_view text, T& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

}  // namespace

void SamplingOptions::add_to(Command& command, const SamplingParams& defaults) {
  const auto add = [&](const char* names, auto& value, auto shown, const char* what) {
    return command.add_option(names, value, what)
        ->default_text(fmt::format("{}", shown))
        ->group(HelpGroup::kSampling);
  };
  add("--temp,--temperature", temperature, defaults.temperature,
      "temperature; 0 = always the most likely token")
      ->basic();
  add("--top-k", top_k, defaults.top_k, "sample from the N most likely tokens; 0 = all");
  add("--top-p", top_p, defaults.top_p, "sample from the smallest set with this probability");
  add("--min-p", min_p, defaults.min_p,
      "drop tokens below this share of the best one's probability");
  add("--repetition-penalty", repetition_penalty, defaults.repetition_penalty,
      "above 1: less of what was already said");
  add("--repetition-window", repetition_window, defaults.repetition_window,
      "last tokens of prompt and answer that --repetition-penalty counts; 0 = all");
  add("--presence-penalty", presence_penalty, defaults.presence_penalty,
      "subtracted from the logit of each token in the answer, once");
  add("--frequency-penalty", frequency_penalty, defaults.frequency_penalty,
      "subtracted from a token's logit for each time it is in the answer");
  command.add_option("--logit-bias", logit_bias, "added to a token's logit; may be repeated")
      ->allow_extra_args(false)
      ->placeholder("ID=BIAS")
      ->group(HelpGroup::kSampling);
  command.add_option("--seed", seed, "start of the random numbers: same seed, same text")
      ->placeholder("N")
      ->default_text("a random one")
      ->group(HelpGroup::kSampling);
  command.add_option("--stop", stop, "end before this text; may be repeated")
      ->allow_extra_args(false)
      ->check(not_empty())
      ->group(HelpGroup::kSampling);
}

SamplingParams SamplingOptions::over(SamplingParams out) const {
  const auto take = [](auto& value, const auto& given) {
    if (given) value = *given;
  };
  take(out.temperature, temperature);
  take(out.top_k, top_k);
  take(out.top_p, top_p);
  take(out.min_p, min_p);
  take(out.repetition_penalty, repetition_penalty);
  take(out.repetition_window, repetition_window);
  take(out.presence_penalty, presence_penalty);
  take(out.frequency_penalty, frequency_penalty);
  for (const std::string& entry : logit_bias) {
    const auto equals = entry.find('=');
    TokenId id = 0;
    float bias = 0;
    const bool ok = equals != std::string::npos &&
                    parse_whole(std::string_view(entry).substr(0, equals), id) &&
                    parse_whole(std::string_view(entry).substr(equals + 1), bias);
    SPW_CHECK(ok, kInvalidArgument, "--logit-bias is '{}'; give ID=BIAS, e.g. 42=-5", entry);
    out.logit_bias.emplace_back(id, bias);
  }
  validate(out, std::numeric_limits<TokenId>::max());
  return out;
}

uint64_t SamplingOptions::choose_seed() const {
  // 32 bits are short to type again, and exact in every JSON reader.
  if (!seed) return std::random_device()();
  uint64_t value = 0;
  SPW_CHECK(parse_whole(*seed, value), kInvalidArgument,
            "--seed is '{}'; give a whole number from 0 to {}", *seed,
            std::numeric_limits<uint64_t>::max());
  return value;
}

}  // namespace spillway
