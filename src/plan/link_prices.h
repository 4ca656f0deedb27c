// SPDX-License-Identifier: Apache-2.0
// Computes how long bytes take over the links between host and GPU memory and to and from the disk.
// Only here are bytes divided by those rates: the cost model of a step, the linear program and the
// CPU's shares of linear layers all use it.
#pragma once

#include "plan/hardware.h"

namespace spillway {

// All results are seconds and all amounts are bytes, unless a name says otherwise. Keeps a
// reference to the hardware, which must outlive it.
class LinkPrices {
 public:
  using Source = Hardware::Source;
  explicit LinkPrices(const Hardware& hardware) : hardware_(hardware) {}

  // Returns the time of one transfer between host and device: its fixed cost, and its bytes at the
  // rate of a transfer of that size times `share`, the part of the rate that a busy CPU leaves. 0
  // if the device computes in host memory.
  double up(double bytes, Source source, double share) const;
  double down(double bytes, double share) const;
  // Returns the time of one read or write: its fixed cost, and its bytes at the disk's rate.
  double disk_read(double bytes) const { return disk(bytes, hardware_.disk_read); }
  double disk_write(double bytes) const { return disk(bytes, hardware_.disk_write); }

  // Returns the time of a transfer of this size without its fixed cost, while the CPU reads as fast
  // as it can.
  double up_beside_cpu(double bytes, Source source) const;

  // Returns the time of a part of a long stream of transfers, without their fixed costs. It is
  // proportional to the bytes, as a linear program needs it. A stream to the device is priced
  // beside a busy CPU.
  double bulk_up(double bytes, Source source) const;
  double bulk_down(double bytes) const { return bytes / hardware_.to_host.best(); }
  double bulk_disk_read(double bytes) const { return bytes / disk_rate(hardware_.disk_read); }
  double bulk_disk_write(double bytes) const { return bytes / disk_rate(hardware_.disk_write); }

  // Returns the time in which the CPU receives the input of a product, `columns` floats for each
  // token, and the device receives the results, `rows` floats for each token.
  double hand_over(double tokens, double columns, double rows) const;

  // Returns the rate of the largest transfers in bytes per second while nothing else moves; 0
  // without a link.
  double most_up_per_s() const;
  double most_down_per_s() const;

 private:
  double disk(double bytes, double rate) const;
  // A disk that was not measured has a rate of 0; it gets 1 byte/s, so its prices are large but
  // finite.
  static double disk_rate(double rate);

  const Hardware& hardware_;
};

}  // namespace spillway
