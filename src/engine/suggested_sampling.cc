// SPDX-License-Identifier: Apache-2.0
#include "engine/suggested_sampling.h"

#include <algorithm>
#include <cstdint>
#include <limits>

#include "base/error.h"

namespace spillway {
namespace {

// Reads one field at a time, and adds those that it cannot use to `ignored`.
class Fields {
 public:
  Fields(const Metadata& metadata, std::vector<std::string>& ignored)
      : metadata_(metadata), ignored_(ignored) {}

  std::optional<float> number(const char* key, double min, double max) {
    return guarded([&]() -> std::optional<float> {
      const auto value = metadata_.try_double(key, min, max);
      return value ? std::optional(static_cast<float>(*value)) : std::nullopt;
    });
  }
  std::optional<int> count(const char* key) {
    return guarded([&]() -> std::optional<int> {
      // Some files say "all" with -1.
      const auto value = metadata_.try_int(key, -1, std::numeric_limits<int>::max());
      return value ? std::optional(static_cast<int>(std::max<int64_t>(*value, 0))) : std::nullopt;
    });
  }
  std::optional<bool> flag(const char* key) {
    return guarded([&] { return metadata_.try_bool(key); });
  }

 private:
  template <class F>
  auto guarded(F&& read) -> decltype(read()) {
    try {
      return read();
    } catch (const Error& error) {
      ignored_.push_back(error.what());
      return std::nullopt;
    }
  }

  const Metadata& metadata_;
  std::vector<std::string>& ignored_;
};

}  // namespace

void SuggestedSampling::apply_to(SamplingParams& params) const {
  if (temperature) params.temperature = *temperature;
  if (top_k) params.top_k = *top_k;
  if (top_p) params.top_p = *top_p;
  if (min_p) params.min_p = *min_p;
  if (repetition_penalty) params.repetition_penalty = *repetition_penalty;
  if (repetition_window) params.repetition_window = *repetition_window;
}

SuggestedSampling suggested_sampling(const Metadata& metadata) {
  SuggestedSampling out;
  Fields fields(metadata, out.ignored);
  out.temperature = fields.number("generation_config.temperature", 0, 100);
  out.top_k = fields.count("generation_config.top_k");
  out.top_p = fields.number("generation_config.top_p", 0, 1);
  out.min_p = fields.number("generation_config.min_p", 0, 1);
  out.repetition_penalty = fields.number("generation_config.repetition_penalty", 0.01, 100);
  // transformers applies the penalty to the whole text.
  if (out.repetition_penalty) out.repetition_window = 0;
  if (fields.flag("generation_config.do_sample") == false) out.temperature = 0.0F;

  if (const auto value = fields.number("general.sampling.temp", 0, 100)) out.temperature = value;
  if (const auto value = fields.count("general.sampling.top_k")) out.top_k = value;
  if (const auto value = fields.number("general.sampling.top_p", 0, 1)) out.top_p = value;
  if (const auto value = fields.number("general.sampling.min_p", 0, 1)) out.min_p = value;
  if (const auto value = fields.number("general.sampling.penalty_repeat", 0.01, 100))
    out.repetition_penalty = value;
  if (const auto value = fields.count("general.sampling.penalty_last_n")) {
    // In this key 0 turns the penalty off, and -1 means the whole context.
    if (metadata.try_int("general.sampling.penalty_last_n") == 0) {
      out.repetition_penalty = 1.0F;
    } else {
      out.repetition_window = value;
    }
  }
  return out;
}

}  // namespace spillway
