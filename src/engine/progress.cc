// SPDX-License-Identifier: Apache-2.0
#include "engine/progress.h"

namespace spillway {
namespace {

class UnseenProgress final : public Progress {
 public:
  void update(uint64_t, uint64_t, std::string_view) override {}
};

}  // namespace

std::unique_ptr<Progress> start_progress(const StartProgress& start, std::string_view title) {
  return start ? start(title) : std::make_unique<UnseenProgress>();
}

}  // namespace spillway
