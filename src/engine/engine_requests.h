// SPDX-License-Identifier: Apache-2.0
// The requests that an engine has, by id.
#pragma once

#include <map>
#include <memory>

#include "engine/engine_request.h"
#include "schedule/request_id.h"

namespace spillway {

// Requests keep their addresses until they end.
using EngineRequests = std::map<RequestId, std::unique_ptr<EngineRequest>>;

}  // namespace spillway
