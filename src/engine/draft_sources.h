// SPDX-License-Identifier: Apache-2.0
// Makes draft sources.
#pragma once

#include <cstdint>
#include <memory>

#include "engine/draft_options.h"
#include "engine/draft_source.h"

namespace spillway {

// Returns null if the options ask for no drafts. `seed` is that of drafts which are accepted at
// random.
std::unique_ptr<DraftSource> make_draft_source(const DraftOptions& options, uint64_t seed);

}  // namespace spillway
