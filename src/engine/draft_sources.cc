// SPDX-License-Identifier: Apache-2.0
#include "engine/draft_sources.h"

#include <algorithm>

#include "engine/lookup_drafts.h"
#include "engine/sampler.h"

namespace spillway {
namespace {

// Shows the cost of drafts at a given acceptance rate, which a model with random weights never
// reaches: proposes the last token over and over and accepts it at random. The emitted tokens are
// those that were sampled.
class DrawnDrafts final : public DraftSource {
 public:
  DrawnDrafts(const DraftOptions& options, uint64_t seed) : options_(options), seed_(seed) {}

  std::vector<TokenId> propose(std::span<const TokenId> tokens, int most) override {
    return std::vector<TokenId>(static_cast<size_t>(std::min(most, options_.tokens)),
                                tokens.back());
  }
  bool accepts(TokenId /*draft*/, TokenId /*drawn*/) override {
    return counter_uniform(seed_, draws_++) < options_.acceptance;
  }

 private:
  DraftOptions options_;
  uint64_t seed_;
  uint64_t draws_ = 0;
};

}  // namespace

std::unique_ptr<DraftSource> make_draft_source(const DraftOptions& options, uint64_t seed) {
  switch (options.kind) {
    case DraftKind::kOff:
      return nullptr;
    case DraftKind::kLookup:
      return std::make_unique<LookupDrafts>();
    case DraftKind::kDrawn:
      return std::make_unique<DrawnDrafts>(options, seed);
  }
  return nullptr;
}

}  // namespace spillway
