// SPDX-License-Identifier: Apache-2.0
#include "plan/link_prices.h"

#include <algorithm>

namespace spillway {
namespace {

// From this size on, the rate of a transfer does not grow any more.
constexpr double kLargeTransfer = 1 << 30;

}  // namespace

double LinkPrices::up(double bytes, Source source, double share) const {
  if (bytes <= 0 || !hardware_.has_device()) return 0;
  return hardware_.transfer_s + bytes / (hardware_.to_device_rate(bytes, source) * share);
}

double LinkPrices::down(double bytes, double share) const {
  if (bytes <= 0 || !hardware_.has_device()) return 0;
  return hardware_.transfer_s + bytes / (hardware_.to_host.at(bytes) * share);
}

double LinkPrices::up_beside_cpu(double bytes, Source source) const {
  return bytes / (hardware_.link_beside_cpu * hardware_.to_device_rate(bytes, source));
}

double LinkPrices::bulk_up(double bytes, Source source) const {
  return bytes / (hardware_.link_beside_cpu *
                  hardware_.to_device_rate(std::max(bytes, kLargeTransfer), source));
}

double LinkPrices::hand_over(double tokens, double columns, double rows) const {
  return (hardware_.meeting_s > 0 ? hardware_.meeting_s : 2 * hardware_.transfer_s) +
         4 * tokens * (columns / hardware_.to_host.best() + rows / hardware_.to_device.best());
}

double LinkPrices::most_up_per_s() const {
  return hardware_.has_device() ? hardware_.to_device.best() : 0;
}

double LinkPrices::most_down_per_s() const {
  return hardware_.has_device() ? hardware_.to_host.best() : 0;
}

double LinkPrices::disk(double bytes, double rate) const {
  return bytes <= 0 ? 0 : hardware_.disk_access_s + bytes / disk_rate(rate);
}

double LinkPrices::disk_rate(double rate) { return std::max(rate, 1.0); }

}  // namespace spillway
