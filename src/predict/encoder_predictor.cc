// SPDX-License-Identifier: Apache-2.0
#include "predict/encoder_predictor.h"

#include <utility>

#include "base/error.h"
#include "base/printable.h"

namespace spillway {
namespace {

// The embedding, a vector of length 1, is scaled by this when it joins the features of the words.
// Found by cross-validation on Alpaca's answers (docs/notes/scheduling.md).
constexpr float kOfEmbedding = 3;

}  // namespace

EncoderPredictor::EncoderPredictor(const LengthBuckets& buckets,
                                   std::shared_ptr<const PromptEncoder> encoder)
    : encoder_(std::move(encoder)), table_(buckets, static_cast<size_t>(encoder_->dimensions())) {}

EncoderPredictor::EncoderPredictor(StoredPredictor stored,
                                   std::shared_ptr<const PromptEncoder> encoder)
    : encoder_(std::move(encoder)), table_(std::move(stored.predictor)) {
  const bool is_same = stored.encoder.digest == encoder_->digest() &&
                       table_.more_slots() == static_cast<size_t>(encoder_->dimensions());
  SPW_CHECK(is_same, kInvalidArgument,
            "the predictor has learned from another encoder than {} is now; train it again with "
            "--encoder {}",
            printable_path(encoder_->folder()), printable_path(encoder_->folder()));
}

std::vector<PromptFeature> EncoderPredictor::look_at(const LengthQuery& query) const {
  std::vector<PromptFeature> seen = prompt_features(query);
  if (query.text.empty()) return seen;
  uint32_t slot = kFeatureSlots;
  for (const float value : encoder_->embed(query.text))
    seen.push_back({slot++, kOfEmbedding * value});
  return seen;
}

bool EncoderPredictor::try_write(const std::filesystem::path& path,
                                 const std::string& model) const {
  write_predictor(path, table_, model,
                  {.digest = encoder_->digest(), .folder = encoder_->folder()});
  return true;
}

std::unique_ptr<OnlinePredictor> predictor_of(StoredPredictor stored, const EncoderOpener& open) {
  if (stored.encoder.digest.empty())
    return std::make_unique<NgramPredictor>(std::move(stored.predictor));
  auto encoder = open(stored.encoder.folder);
  return std::make_unique<EncoderPredictor>(std::move(stored), std::move(encoder));
}

}  // namespace spillway
