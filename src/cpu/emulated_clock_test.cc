// SPDX-License-Identifier: Apache-2.0
#include "cpu/emulated_clock.h"

#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <memory>

#include "cpu/emulated_accelerator.h"

namespace spillway {
namespace {

constexpr uint64_t kRate = 1000;  // bytes per second

struct ClockedMachine {
  std::shared_ptr<EmulatedClock> clock = std::make_shared<EmulatedClock>();
  EmulatedAccelerator accelerator{{.bytes_per_s = kRate, .clock = clock}};
  std::array<std::byte, 2000> from = {}, to = {};

  void copy(DeviceStream& stream, size_t bytes) {
    const CopyPiece piece{to.data(), from.data(), bytes};
    stream.copy_to_device({&piece, 1});
  }
};

TEST(EmulatedClockTest, CopiesTakeTheirTimeBesideOthers) {
  ClockedMachine machine;
  const auto stream = machine.accelerator.make_stream();
  const auto begun = machine.accelerator.make_event(true), ended = machine.accelerator.make_event();
  machine.from[499] = std::byte{7};
  stream->record(*begun);
  machine.copy(*stream, 500);
  machine.copy(*stream, 1000);
  stream->record(*ended);
  EXPECT_EQ(machine.to[499], std::byte{7});
  EXPECT_DOUBLE_EQ(ended->seconds_after(*begun), 1.5);
  EXPECT_EQ(machine.clock->now_s(), 0) << "no queue has waited";
  machine.clock->pass(1);
  machine.accelerator.compute().wait(*ended);
  EXPECT_DOUBLE_EQ(machine.clock->now_s(), 1.5);
  machine.accelerator.compute().wait(*ended);
  EXPECT_DOUBLE_EQ(machine.clock->now_s(), 1.5) << "it is over";
}

TEST(EmulatedClockTest, WhatIsQueuedLaterBeginsLater) {
  ClockedMachine machine;
  const auto first = machine.accelerator.make_stream(), second = machine.accelerator.make_stream();
  const auto there = machine.accelerator.make_event();
  machine.clock->pass(3);
  machine.copy(*first, 1000);
  first->record(*there);
  second->wait(*there);
  machine.accelerator.set_link_share(0.5);
  machine.copy(*second, 1000);
  first->synchronize();
  EXPECT_DOUBLE_EQ(machine.clock->now_s(), 4);
  second->synchronize();
  EXPECT_DOUBLE_EQ(machine.clock->now_s(), 6) << "half of the link was gone";
}

}  // namespace
}  // namespace spillway
