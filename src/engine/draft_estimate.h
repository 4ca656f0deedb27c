// SPDX-License-Identifier: Apache-2.0
// Estimates the times of steps with drafts by the cost model.
#pragma once

#include "engine/draft_options.h"
#include "engine/session.h"

namespace spillway {

// Returns what `drafts` cost an engine in which up to `sequences` sequences generate together;
// DraftCosts() if drafts are off.
DraftCosts estimate_draft_costs(const Session& session, const DraftOptions& drafts, int sequences);

}  // namespace spillway
