// SPDX-License-Identifier: Apache-2.0
// What the cost model says of steps with drafts.
#pragma once

#include "engine/draft_options.h"
#include "engine/session.h"

namespace spillway {

// What `drafts` cost an engine in which at most so many sequences generate together. Nothing where
// they are not looked up.
DraftCosts estimate_draft_costs(const Session& session, const DraftOptions& drafts, int sequences);

}  // namespace spillway
