// SPDX-License-Identifier: Apache-2.0
// How long bytes take over the links between host and GPU memory and to and from the disk: the only
// place where bytes are divided by those rates. The cost model of a step, the linear program and
// the CPU's shares of linear layers all ask it.
#pragma once

#include "plan/hardware.h"

namespace spillway {

// All results are seconds, and all amounts are bytes. Refers to the hardware, which must outlive
// it.
class LinkPrices {
 public:
  using Source = Hardware::Source;
  explicit LinkPrices(const Hardware& hardware) : hardware_(hardware) {}

  // One transfer between host and device: its fixed cost, and its bytes at the rate of a transfer
  // of that size, of which `share` is left by the CPU. 0 where the host's memory is the device's.
  double up(double bytes, Source source, double share) const;
  double down(double bytes, double share) const;
  // One read or write: its fixed cost, and its bytes at the disk's rate.
  double disk_read(double bytes) const { return disk(bytes, hardware_.disk_read); }
  double disk_write(double bytes) const { return disk(bytes, hardware_.disk_write); }

  // The bytes of a transfer of this size, without its fixed cost, while the CPU reads as fast as it
  // can.
  double up_beside_cpu(double bytes, Source source) const;

  // A part of a long stream of transfers, without what each costs however small: proportional to
  // the bytes, as a linear program needs it. A stream to the device runs beside a busy CPU.
  double bulk_up(double bytes, Source source) const;
  double bulk_down(double bytes) const { return bytes / hardware_.to_host.best(); }
  double bulk_disk_read(double bytes) const { return bytes / disk_rate(hardware_.disk_read); }
  double bulk_disk_write(double bytes) const { return bytes / disk_rate(hardware_.disk_write); }

  // The CPU gets the input of a product, `columns` floats for each token, and `rows` floats of
  // results for each token go back to the device.
  double hand_over(double tokens, double columns, double rows) const;

  // Bytes per second of the largest transfers when nothing else moves; 0 where there is no link.
  double most_up_per_s() const;
  double most_down_per_s() const;

 private:
  double disk(double bytes, double rate) const;
  // A disk that was not measured has a rate of 0: its prices are large, but finite.
  static double disk_rate(double rate);

  const Hardware& hardware_;
};

}  // namespace spillway
