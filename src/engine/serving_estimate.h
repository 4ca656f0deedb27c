// SPDX-License-Identifier: Apache-2.0
// What the cost model says of a server's steps.
#pragma once

#include "engine/session.h"

namespace spillway {

struct ServingEstimate {
  double step_s = 0;  // of decoding, with all sequences at work
  // Tokens of prompts that a step takes beside them: as many as weights on their way hide, or as
  // others will hardly notice.
  int prompt_tokens = 0;
  // Bytes per second that links do at best; 0: nobody knows, or there is no such link.
  double to_gpu = 0, to_host = 0, disk_read = 0, disk_write = 0;
};

// For `sequences` at once with about so long prompts and answers, in steps of at most
// `max_step_tokens`.
ServingEstimate estimate_serving(const Session& session, int64_t sequences, int64_t prompt,
                                 int64_t generated, int max_step_tokens);

}  // namespace spillway
