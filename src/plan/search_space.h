// SPDX-License-Identifier: Apache-2.0
// Lists what a search tries: numbers of concurrent sequences, micro-batches, settings that free
// memory on the device, and places of attention. For each combination of these,
// plan/share_program.h finds which share of the weights, the KV and the hidden states each memory
// holds, and plan/share_fitting.h makes the plan fit.
#pragma once

#include <cstdint>
#include <set>
#include <vector>

#include "plan/search_request.h"

namespace spillway {

// Settings that free memory on a device that is too small.
struct Concession {
  Tier embeddings = Tier::kDevice;
  int chunk = 0;
};

// Keeps a reference to the request. Thread-safe.
class SearchSpace {
 public:
  explicit SearchSpace(const SearchRequest& request);

  // Returns the numbers of concurrent sequences that are worth trying. If there are many, only some
  // are returned: powers of two and the numbers halfway between them, and the fewest (and for up to
  // four batch blocks also the most) sequences with which all requests are done in 2, 3, ... 8
  // batch blocks, groups of sequences that run one after the other. With
  // SearchRequest::coarse, only the least number and its doubles, and the most.
  std::set<int64_t> counts(int64_t least, int64_t most) const;
  // Returns a few numbers between the best of those that were tried and its neighbours.
  static std::set<int64_t> between(const std::set<int64_t>& tried, int64_t best);
  // Returns the concessions to try in turn. Each costs time and frees memory.
  std::vector<Concession> concessions() const;
  // Returns the sizes of micro-batches to try; 0 is all sequences together.
  std::vector<int> micro_batches_of(int64_t sequences) const;
  // Returns the places of attention to try for KV that is not on the device.
  std::vector<AttentionPlace> places() const;
  // Returns a plan with everything on the device, except what the request places elsewhere
  // (SearchRequest::given).
  FoundPlan plan_on_device(int64_t sequences, int chunk, int micro_batch) const;

 private:
  const SearchRequest& r_;
  const bool discrete_;
  const int64_t requests_, longest_;
};

}  // namespace spillway
