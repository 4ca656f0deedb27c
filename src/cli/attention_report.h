// SPDX-License-Identifier: Apache-2.0
// Reports how many bytes sparse attention read.
#pragma once

#include <string>

#include "cli/json_output.h"
#include "device/sparse_attention.h"

namespace spillway {

// Adds attention_topk (0: dense), attention_v_bytes and attention_v_bytes_dense, which count rows
// that generate tokens.
void report_attention(nlohmann::json& out, float top_k, const AttentionTraffic& traffic);
// Returns the same as a line of text.
std::string describe_attention(const AttentionTraffic& traffic);

}  // namespace spillway
