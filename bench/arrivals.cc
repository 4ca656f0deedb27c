// SPDX-License-Identifier: Apache-2.0
#include "bench/arrivals.h"

#include <fstream>
#include <sstream>

#include "base/error.h"

namespace spillway {
namespace {

// Resolves the escapes \n and \\, because a predictor looks at the lines of a prompt.
std::string with_its_lines(const std::string& written) {
  std::string text;
  for (size_t i = 0; i < written.size(); ++i) {
    const bool is_escape = written[i] == '\\' && i + 1 < written.size();
    if (is_escape) ++i;
    text += is_escape && written[i] == 'n' ? '\n' : written[i];
  }
  return text;
}

}  // namespace

Arrivals::Arrivals(const std::string& path, int64_t vocabulary, uint32_t seed)
    : vocabulary_(vocabulary), random_(seed) {
  std::ifstream file(path);
  std::string text;
  while (std::getline(file, text)) {
    std::istringstream words(text);
    Line line;
    words >> line.at_s >> line.prompt >> line.answer;
    SPW_CHECK(!words.fail() && line.prompt > 0 && line.answer > 0, kInvalidArgument,
              "{}, line {}: seconds, tokens of a prompt and of its answer are wanted", path,
              lines_.size() + 1);
    std::string written;
    std::getline(words >> std::ws, written);
    line.asked = with_its_lines(written);
    lines_.push_back(std::move(line));
  }
  SPW_CHECK(!lines_.empty(), kInvalidArgument, "{}: there are no requests", path);
}

Arrivals::Arrival Arrivals::take() {
  const Line& line = lines_[next_++ % lines_.size()];
  Arrival arrival{.request = {}, .at_s = line.at_s};
  arrival.request.prompt.resize(static_cast<size_t>(line.prompt));
  for (TokenId& id : arrival.request.prompt)
    id = static_cast<TokenId>(random_() % static_cast<uint64_t>(vocabulary_));
  arrival.request.max_tokens = line.answer;
  arrival.request.asked = line.asked;
  return arrival;
}

}  // namespace spillway
