// SPDX-License-Identifier: Apache-2.0
// Runs a reader on a damaged input, then all code that uses what it read, and checks that they end
// in a result or an error of one line, within bounded time and memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "storage/tensor_index.h"

namespace spillway {

using Bytes = std::vector<std::byte>;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;  // some ten times slower: fewer cases
#else
inline constexpr bool kSanitized = false;
#endif

// Counts cases. The binary replaces operator new to see the peak of memory in use. Not thread-safe.
class CaseRunner {
 public:
  static constexpr uint64_t kSlackBytes = uint64_t{64} << 20;

  // A reader that takes longer hangs, for all that a user can tell: one whose time grows with the
  // square of its input needs minutes for the 20 MB of the largest cases. How fast a reader is, on
  // a machine that may be busy, is no test's matter.
  static constexpr double kMaxSeconds = 20;

  // `read` must return or throw an Error of one line; what it returns must have its extents inside
  // the file. Then describe_model() and the tokenizer must each work or throw such an Error. All of
  // it must stay within kMaxSeconds of processor time and `input_bytes` + kSlackBytes of memory.
  void run(uint64_t input_bytes, const std::function<ModelFiles()>& read,
           const std::function<std::string()>& describe);

  int cases() const { return cases_; }
  int accepted() const { return accepted_; }    // by the reader
  int described() const { return described_; }  // of these, as a model
  int tokenized() const { return tokenized_; }  // of these, with a tokenizer that encodes
  uint64_t peak_bytes() const { return peak_bytes_; }
  double slowest_seconds() const { return slowest_seconds_; }
  // For the test's log: "40000 cases, 12000 accepted, ...".
  std::string summary() const;

 private:
  int cases_ = 0;
  int accepted_ = 0;
  int described_ = 0;
  int tokenized_ = 0;
  uint64_t peak_bytes_ = 0;
  double slowest_seconds_ = 0;
};

// Returns a folder for files that are written tens of thousands of times, in memory if possible.
std::filesystem::path memory_folder();

// Receives mutants, each with its description. The functions below need no knowledge of the format.
using Visit =
    std::function<void(const Bytes& mutant, const std::function<std::string()>& describe)>;
// Visits every prefix shorter than `bytes`, up to `header_bytes`.
void each_truncation(const Bytes& bytes, size_t header_bytes, const Visit& visit);
// Visits a mutant for each flipped bit; when kSanitized only one bit of each byte.
void each_bit_flip(const Bytes& bytes, size_t header_bytes, const Visit& visit);
// Visits `count` mutants with a few bytes overwritten, or a range deleted, doubled or moved; they
// are the same every time.
void random_damage(const Bytes& bytes, size_t header_bytes, int count, uint64_t seed,
                   const Visit& visit);

}  // namespace spillway
