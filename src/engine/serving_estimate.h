// SPDX-License-Identifier: Apache-2.0
// Estimates a server's steps by the cost model.
#pragma once

#include "engine/session.h"

namespace spillway {

struct ServingEstimate {
  double step_s = 0;  // seconds of a decode step with all sequences running
  // Prompt tokens that a step takes in addition: as many as the streaming of weights hides, or as
  // other requests will hardly notice.
  int prompt_tokens = 0;
  // The most bytes per second of the links; 0: unknown, or there is no such link.
  double to_gpu = 0, to_host = 0, disk_read = 0, disk_write = 0;
};

// Estimates the steps of `sequences` concurrent sequences with prompts and answers of about these
// lengths, in steps of at most `max_step_tokens`.
ServingEstimate estimate_serving(const Session& session, int64_t sequences, int64_t prompt,
                                 int64_t generated, int max_step_tokens);

}  // namespace spillway
