// SPDX-License-Identifier: Apache-2.0
// The sources of drafts that there are.
#pragma once

#include <cstdint>
#include <memory>

#include "engine/draft_options.h"
#include "engine/draft_source.h"

namespace spillway {

// Null where none are asked for. `seed`: of what is left to chance.
std::unique_ptr<DraftSource> make_draft_source(const DraftOptions& options, uint64_t seed);

}  // namespace spillway
