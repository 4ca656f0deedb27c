// SPDX-License-Identifier: Apache-2.0
#include "plan/search_space.h"

#include <algorithm>
#include <iterator>

namespace spillway {
namespace {

constexpr int64_t kFew = 32;     // with fewer numbers of sequences than this, all are tried
constexpr int64_t kBetween = 3;  // numbers of sequences that are tried in a round

}  // namespace

SearchSpace::SearchSpace(const SearchRequest& request)
    : r_(request),
      discrete_(request.hardware.has_device()),
      requests_(request.workload.requests()),
      longest_(request.workload.longest()) {}

std::set<int64_t> SearchSpace::counts(int64_t least, int64_t most) const {
  most = most > 0 ? std::min(most, requests_) : requests_;
  least = std::clamp<int64_t>(least, 1, most);
  std::set<int64_t> all{least, most};
  if (r_.coarse) {
    for (int64_t n = least; n < most; n *= 2) all.insert(n);
    return all;
  }
  if (most - least < kFew) {
    for (int64_t n = least; n <= most; ++n) all.insert(n);
    return all;
  }
  const auto add = [&](int64_t n) {
    if (n >= least && n <= most) all.insert(n);
  };
  for (int64_t n = 1; n < most; n *= 2) {
    add(n);
    add(n + n / 2);
  }
  for (int64_t blocks = 2; blocks <= 8; ++blocks) {
    add((requests_ + blocks - 1) / blocks);
    if (blocks <= 4) add((requests_ + blocks - 2) / (blocks - 1) - 1);
  }
  return all;
}

std::set<int64_t> SearchSpace::between(const std::set<int64_t>& tried, int64_t best) {
  const auto at = tried.find(best);
  const int64_t low = at == tried.begin() ? best : *std::prev(at);
  const int64_t high = std::next(at) == tried.end() ? best : *std::next(at);
  std::set<int64_t> all;
  for (int64_t i = 1; i <= kBetween; ++i) {
    const int64_t n = low + (high - low) * i / (kBetween + 1);
    if (n > low && n < high && n != best) all.insert(n);
  }
  return all;
}

std::vector<Concession> SearchSpace::concessions() const {
  std::vector<Concession> all{{r_.given.embeddings.value_or(Tier::kDevice), r_.size.micro_tokens}};
  if (discrete_ && !r_.given.embeddings) all.push_back({Tier::kHost, r_.size.micro_tokens});
  while (all.back().chunk > r_.smallest_chunk)
    all.push_back({all.back().embeddings, std::max(r_.smallest_chunk, all.back().chunk / 2)});
  return all;
}

std::vector<int> SearchSpace::micro_batches_of(int64_t sequences) const {
  if (r_.given.micro_batch) return {*r_.given.micro_batch};
  std::vector<int> all{0};  // 0: all sequences together
  for (int64_t parts = 2; discrete_ && parts <= 16 && parts <= sequences;
       parts *= r_.coarse ? 4 : 2)
    all.push_back(static_cast<int>((sequences + parts - 1) / parts));
  return all;
}

std::vector<AttentionPlace> SearchSpace::places() const {
  const bool open = r_.given.attention == AttentionPlace::kAuto && r_.same_for_every_sequence;
  if (r_.given.attention && !open) return {*r_.given.attention};
  if (!discrete_) return {AttentionPlace::kAuto};
  if (r_.same_for_every_sequence) return {AttentionPlace::kCpu, AttentionPlace::kGpu};
  return {AttentionPlace::kAuto, AttentionPlace::kCpu, AttentionPlace::kGpu};
}

FoundPlan SearchSpace::plan_on_device(int64_t sequences, int chunk, int micro_batch) const {
  FoundPlan plan{.size = r_.size};
  plan.size.micro_tokens = chunk;
  plan.size.sequences = sequences;
  plan.size.tokens = std::max<int64_t>(plan.size.tokens, longest_);
  plan.plan.micro_batch = micro_batch;
  r_.given.apply_to(plan.plan);
  plan.plan.attention_topk = r_.attention_topk;
  return plan;
}

}  // namespace spillway
