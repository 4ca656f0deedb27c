// SPDX-License-Identifier: Apache-2.0
// Prompts and answers as numbers of tokens: reads files of them, and counts tokens with padding.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

#include "plan/predict.h"

namespace spillway {

struct RequestLengths {
  int prompt = 0;
  int answer = 0;

  int64_t total() const { return int64_t{prompt} + answer; }
};

// Reads one request per line: "PROMPT ANSWER", or columns named by a header, as in Azure's traces
// (ContextTokens, GeneratedTokens). Returns the first `most` requests; 0: all. Throws
// kInvalidArgument naming the line for anything else, and for a file without requests.
std::vector<RequestLengths> read_request_lengths(const std::filesystem::path& path, size_t most);

// Keeps the order of the requests.
Workload workload_of(std::span<const RequestLengths> requests);

struct TokenCounts {
  int64_t prompt = 0;
  int64_t answer = 0;
};
TokenCounts count_tokens(std::span<const RequestLengths> requests);
// Counts as if all of `block` consecutive requests had the longest prompt and the longest answer
// among them, which an engine that pads computes (FlexGen, tables 9-11 and 25).
TokenCounts count_padded_tokens(std::span<const RequestLengths> requests, size_t block);

}  // namespace spillway
