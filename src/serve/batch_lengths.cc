// SPDX-License-Identifier: Apache-2.0
#include "serve/batch_lengths.h"

#include <algorithm>
#include <cmath>

#include "serve/served_model.h"

namespace spillway {
namespace {

constexpr size_t kMostLines = 2048, kParts = 4;

// Rounds to the nearest power of two.
int64_t rounded(double tokens) {
  return std::max<int64_t>(1, int64_t{1} << std::llround(std::log2(std::max(1.0, tokens))));
}

void add_answers(const OpenAiRequest& request, const AnswerLengths& lengths, int64_t most_tokens,
                 std::vector<int64_t>& answers) {
  const int64_t most = std::min<int64_t>(most_tokens, request.max_tokens.value_or(most_tokens));
  if (most <= 0) return;
  for (const std::string& question : questions_of(request)) {
    const int64_t least = std::min<int64_t>(most, request.min_tokens);
    const int64_t tokens =
        request.ignore_end ? most : std::clamp(lengths.mean_tokens(question, most), least, most);
    answers.insert(answers.end(), static_cast<size_t>(request.choices), tokens);
  }
}

}  // namespace

std::vector<int64_t> predicted_answers(const BatchInput& input, const AnswerLengths& lengths,
                                       int64_t most_tokens) {
  std::vector<int64_t> answers;
  const size_t step = std::max<size_t>(1, input.size() / kMostLines);
  for (size_t i = 0; i < input.size(); i += step) {
    if (input.problem(i) != nullptr) continue;
    try {
      add_answers(input.line(i).request(), lengths, most_tokens, answers);
    } catch (const ApiError&) {
      // The error becomes this request's result later.
    }
  }
  if (answers.empty()) return {};
  std::ranges::sort(answers);
  std::vector<int64_t> parts;
  for (size_t part = 0; part < kParts; ++part) {
    const size_t begin = answers.size() * part / kParts;
    const size_t end = std::max(begin + 1, answers.size() * (part + 1) / kParts);
    double sum = 0;
    for (size_t i = begin; i < end; ++i) sum += static_cast<double>(answers[i]);
    parts.push_back(rounded(sum / static_cast<double>(end - begin)));
  }
  return parts;
}

}  // namespace spillway
