// SPDX-License-Identifier: Apache-2.0
#include "cli/attention_report.h"

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include <cmath>

#include "base/byte_units.h"

namespace spillway {

void report_attention(nlohmann::json& out, float top_k, const AttentionTraffic& traffic) {
  out["attention_topk"] = std::round(double{top_k} * 1e6) / 1e6;  // rounded to what the user typed
  out["attention_v_bytes"] = traffic.v_bytes;
  out["attention_v_bytes_dense"] = traffic.dense_v_bytes;
}

std::string describe_attention(const AttentionTraffic& traffic) {
  const double share = traffic.dense_v_bytes == 0 ? 0
                                                  : static_cast<double>(traffic.v_bytes) /
                                                        static_cast<double>(traffic.dense_v_bytes);
  return fmt::format("attention {} of values read in decode; dense attention reads {} ({:.1f}%)\n",
                     format_bytes(traffic.v_bytes), format_bytes(traffic.dense_v_bytes),
                     100 * share);
}

}  // namespace spillway
