// SPDX-License-Identifier: Apache-2.0
// Runs the fuzz targets without libFuzzer: on their seeds, on every prefix of these, and on random
// changes of them, the same in each run.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <ostream>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "tests/fuzz/fuzz_targets.h"

namespace spillway {
namespace {

struct Target {
  const char* name;  // also of its seeds and its dictionary
  void (*run)(std::string_view);
};
void PrintTo(const Target& target, std::ostream* out) { *out << target.name; }

std::string contents(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::filesystem::path folder() { return std::filesystem::path(SPW_SOURCE_DIR) / "tests/fuzz"; }

std::vector<std::string> seeds_of(const Target& target) {
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(folder() / "seeds" / target.name))
    paths.push_back(entry.path());
  std::ranges::sort(paths);
  std::vector<std::string> seeds;
  for (const auto& path : paths) seeds.push_back(contents(path));
  return seeds;
}

// Returns the words of libFuzzer's dictionary: "word" a line, with \r, \n, \", \\ and \xHH.
std::vector<std::string> words_of(const Target& target) {
  std::ifstream file(folder() / (std::string(target.name) + ".dict"));
  std::vector<std::string> words;
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line.front() == '#') continue;
    std::string& word = words.emplace_back();
    const size_t end = line.rfind('"');
    for (size_t i = line.find('"') + 1; i < end; ++i) {
      if (line[i] != '\\') {
        word += line[i];
      } else if (line[++i] == 'x') {
        word += static_cast<char>(std::stoi(line.substr(i + 1, 2), nullptr, 16));
        i += 2;
      } else {
        word += line[i] == 'r' ? '\r' : line[i] == 'n' ? '\n' : line[i];
      }
    }
  }
  return words;
}

class Mutator {
 public:
  Mutator(std::vector<std::string> seeds, std::vector<std::string> words)
      : seeds_(std::move(seeds)), words_(std::move(words)) {}

  std::string next() {
    std::string text = any(seeds_);
    for (size_t changes = 1 + below(6); changes > 0; --changes) change(text);
    return text;
  }

 private:
  size_t below(size_t end) { return end == 0 ? 0 : draw_() % end; }
  const std::string& any(const std::vector<std::string>& of) { return of[below(of.size())]; }

  void change(std::string& text) {
    constexpr size_t kMostBytes = 16 << 10;
    const size_t at = below(text.size() + 1), count = 1 + below(12);
    switch (below(7)) {
      case 0:
        text.insert(at, any(words_));
        break;
      case 1:
        text.replace(at, std::min(count, text.size() - at), any(words_));
        break;
      case 2:
        text.erase(at, count);
        break;
      case 3:
        if (at < text.size()) text[at] = static_cast<char>(below(256));
        break;
      case 4:
        if (at < text.size()) text[at] = static_cast<char>(text[at] ^ (1 << below(8)));
        break;
      case 5: {  // repeat a part several times
        const std::string part = text.substr(at, 1 + below(40));
        for (size_t times = 1 + below(30); times > 0; --times) text.insert(at, part);
        break;
      }
      default: {  // insert a part of another seed
        const std::string& other = any(seeds_);
        const size_t from = below(other.size() + 1);
        text.insert(at, other.substr(from, 1 + below(200)));
      }
    }
    if (text.size() > kMostBytes) text.resize(kMostBytes);
  }

  std::vector<std::string> seeds_, words_;
  std::mt19937_64 draw_{21};
};

class FuzzTest : public testing::TestWithParam<Target> {};

TEST_P(FuzzTest, TakesItsSeedsAndWhatIsLeftOfThem) {
  const std::vector<std::string> seeds = seeds_of(GetParam());
  ASSERT_GE(seeds.size(), 3U);
  for (const std::string& seed : seeds) {
    for (size_t bytes = 0; bytes <= seed.size(); ++bytes) {
      SCOPED_TRACE(testing::PrintToString(seed.substr(0, bytes)));
      ASSERT_NO_THROW(GetParam().run(std::string_view(seed).substr(0, bytes)));
    }
  }
}

TEST_P(FuzzTest, TakesWhatIsMadeOfThem) {
  const std::vector<std::string> words = words_of(GetParam());
  ASSERT_GE(words.size(), 10U);
  Mutator mutator(seeds_of(GetParam()), words);
  for (int i = 0; i < 20'000; ++i) {
    const std::string input = mutator.next();
    SCOPED_TRACE(testing::PrintToString(input));
    ASSERT_NO_THROW(GetParam().run(input)) << "input " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(, FuzzTest,
                         testing::Values(Target{"http_request", fuzz_http_request},
                                         Target{"chat_template", fuzz_chat_template},
                                         Target{"api_request", fuzz_api_request}),
                         [](const auto& target) { return std::string(target.param.name); });

}  // namespace
}  // namespace spillway
