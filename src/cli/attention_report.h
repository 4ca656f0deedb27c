// SPDX-License-Identifier: Apache-2.0
// What sparse attention reads, for reports.
#pragma once

#include <string>

#include "cli/json_output.h"
#include "device/sparse_attention.h"

namespace spillway {

// attention_topk (0: dense), attention_v_bytes and attention_v_bytes_dense, of rows that generate.
void report_attention(nlohmann::json& out, float top_k, const AttentionTraffic& traffic);
// The same as a line for people.
std::string describe_attention(const AttentionTraffic& traffic);

}  // namespace spillway
