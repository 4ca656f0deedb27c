// SPDX-License-Identifier: Apache-2.0
#include "plan/fill.h"

#include <algorithm>

#include "base/byte_units.h"
#include "base/error.h"

namespace spillway {
namespace {

// Layers do not stream exactly the same bytes: homes are whole matrices, at worst one more.
constexpr double kUneven = 1.35;

// The largest share of the matrices that fits into `room` beside the slots that the rest streams
// through; below 0 where not even the slots fit.
double resident_share(const FillRequest& r, double room) {
  const auto matrices = static_cast<double>(r.matrix_bytes);
  if (matrices <= room) return 1;
  const double slots = r.slots * kUneven * matrices / r.layers;
  // share * matrices + (1 - share) * slots = room
  return (room - slots) / std::max(matrices - slots, 1.0);
}

}  // namespace

Plan fill_from_the_top(const FillRequest& r) {
  Plan plan;
  const auto kv = static_cast<double>(r.kv_bytes), matrices = static_cast<double>(r.matrix_bytes);
  double room = static_cast<double>(r.has_device ? r.device_bytes : r.host_bytes) -
                static_cast<double>(r.fixed_bytes);
  double host_left = static_cast<double>(r.host_bytes) - static_cast<double>(r.host_fixed_bytes);
  if (matrices + kv > room && r.has_device) {
    if (kv > static_cast<double>(r.device_bytes) / 4) {
      plan.kv = {0, 1, 0};
      room -= static_cast<double>(r.kv_staging_bytes);
      host_left -= kv;
      SPW_CHECK(host_left >= 0, kOutOfMemory,
                "the KV cache needs {}, more than the {} of host memory", format_bytes(r.kv_bytes),
                format_bytes(r.host_bytes));
    } else {
      room -= kv;
    }
  } else {
    room -= kv;
  }
  const double share = resident_share(r, room);
  SPW_CHECK(share >= 0, kOutOfMemory,
            "{} need {}{} and room for {} layers to stream through, {} in all, but there are only "
            "{} of {} memory",
            "activations, embeddings and workspace", format_bytes(r.fixed_bytes),
            plan.kv.device > 0 ? " beside the KV cache" : "", r.slots,
            format_bytes(static_cast<uint64_t>(r.slots * kUneven * matrices / r.layers) +
                         r.fixed_bytes + (plan.kv.device > 0 ? r.kv_bytes : r.kv_staging_bytes)),
            format_bytes(r.has_device ? r.device_bytes : r.host_bytes),
            r.has_device ? "GPU" : "host");
  if (share >= 1) return plan;
  // A percent less than what the arithmetic says: homes are whole matrices.
  const double on_device = std::max(0.0, share - 0.01);
  double rest = 1 - on_device;
  double on_host = 0;
  if (r.has_device) on_host = std::clamp(host_left / matrices - 0.005, 0.0, rest);
  rest -= on_host;
  if (rest < 1e-9) {
    on_host += rest;
    rest = 0;
  }
  const double on_disk = rest * matrices;
  SPW_CHECK(on_disk <= static_cast<double>(r.disk_bytes), kOutOfMemory,
            "{} of the weights do not fit into {} of memory, and --disk-memory is {}",
            format_bytes(static_cast<uint64_t>(on_disk)),
            format_bytes(r.host_bytes + (r.has_device ? r.device_bytes : 0)),
            format_bytes(r.disk_bytes));
  plan.weights = r.has_device ? TierShares{on_device, on_host, rest}
                              : TierShares{0, on_device + on_host, rest};
  return plan;
}

}  // namespace spillway
