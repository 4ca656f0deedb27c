// SPDX-License-Identifier: Apache-2.0
// Refuses fields of OpenAI's, vLLM's and llama-server's APIs that would change an answer and are
// not supported.
#pragma once

#include "serve/openai_route.h"
#include "serve/request_fields.h"

namespace spillway {

// Takes all of these fields. A neutral value passes (`use_beam_search` false, `mirostat` 0); any
// other throws ApiError(400) naming the field.
void refuse_unsupported_fields(OpenAiRoute route, RequestFields& fields);

}  // namespace spillway
