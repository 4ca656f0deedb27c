// SPDX-License-Identifier: Apache-2.0
#include "cli/sampling_options.h"
#include "cli/checks.h"

#include <CLI/CLI.hpp>
#include <charconv>

#include "base/error.h"

namespace spillway {
namespace {

template <class T>
bool parse_whole(std::string_view text, T& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

}  // namespace

void SamplingOptions::add_to(CLI::App& command) {
  const auto group = "Sampling";
  command.add_option("--temp", params.temperature, "temperature; 0 = always the most likely token")
      ->capture_default_str()
      ->group(group);
  command.add_option("--top-k", params.top_k, "draw from the K most likely tokens; 0 = all")
      ->capture_default_str()
      ->group(group);
  command.add_option("--top-p", params.top_p, "draw from the smallest set with this probability")
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--min-p", params.min_p,
                  "drop tokens below this share of the best one's probability")
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--repetition-penalty", params.repetition_penalty,
                  "above 1: less of what was already said")
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--presence-penalty", params.presence_penalty,
                  "off the logit of tokens in the answer, once")
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--frequency-penalty", params.frequency_penalty,
                  "... and once for each time they occur")
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--logit-bias", logit_bias, "ID=BIAS, added to a token's logit; may be repeated")
      ->allow_extra_args(false)
      ->group(group);
  command.add_option("--seed", params.seed, "same seed, same text")
      ->check(not_negative())
      ->capture_default_str()
      ->group(group);
  command.add_option("--stop", stop, "end before this text; may be repeated")
      ->allow_extra_args(false)
      ->group(group);
}

SamplingParams SamplingOptions::parse() const {
  SamplingParams out = params;
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
  return out;
}

}  // namespace spillway
