// SPDX-License-Identifier: Apache-2.0
#include "measure/disk_rates.h"

#include <algorithm>
#include <system_error>
#include <vector>

#include "base/error.h"
#include "base/printable.h"
#include "measure/seconds_since.h"
#include "storage/aligned_buffer.h"
#include "storage/temporary_file.h"

namespace spillway {
namespace {

constexpr uint64_t kPiece = uint64_t{4} << 20;
constexpr size_t kAhead = 4;  // pieces in flight, as with a layer's weights

// Moves pieces of the file from its beginning until `at_most_s` is over, at most `most` of them.
// Returns how many were moved, and the time in `seconds`.
template <class Begin>
uint64_t move_pieces(uint64_t most, double at_most_s, MeasurePace& pace, double& seconds,
                     Begin begin) {
  std::vector<IoTicket> tickets(kAhead);
  const auto start = Clock::now();
  const auto elapsed = [&] { return seconds_since(start); };
  uint64_t pieces = 0;
  for (; pieces < most && (pieces < kAhead || elapsed() < at_most_s); ++pieces) {
    pace.check();
    IoTicket& ticket = tickets[pieces % kAhead];
    ticket.wait();
    ticket = begin(pieces * kPiece, pieces % kAhead);
  }
  wait_all(tickets);
  seconds = elapsed();
  return pieces;
}

}  // namespace

DiskRates measure_disk(IoQueue& queue, const std::filesystem::path& dir, uint64_t most_bytes,
                       MeasurePace& pace, double share) {
  pace.begin("disk: writing", share / 2);
  DiskRates rates;
  std::error_code error;
  const auto space = std::filesystem::space(dir, error);
  SPW_CHECK(!error, kInvalidArgument, "--disk-dir {}: {}", printable_path(dir), error.message());
  rates.free_bytes = space.available;
  const uint64_t most = std::min(most_bytes, rates.free_bytes / 4) / kPiece;
  SPW_CHECK(most >= kAhead, kIo, "{} has no room for a file to measure with", printable_path(dir));
  AlignedBuffer memory(kAhead * kPiece);
  // The data are not zeros because some disks and file systems do not store these.
  uint64_t state = 1;
  for (size_t i = 0; i + sizeof(state) <= memory.size(); i += sizeof(state)) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    std::copy_n(reinterpret_cast<const std::byte*>(&state), sizeof(state), memory.data() + i);
  }
  const TemporaryFile file({.dir = dir, .label = "profile", .bytes = most * kPiece});
  const auto place = [&](size_t slot) { return memory.span().subspan(slot * kPiece, kPiece); };
  double seconds = 0;
  const uint64_t written = move_pieces(
      most, pace.left(), pace, seconds,
      [&](uint64_t offset, size_t slot) { return queue.write(file.file(), offset, place(slot)); });
  rates.write_bytes_per_s = static_cast<double>(written * kPiece) / seconds;
  pace.begin("disk: reading", share / 2);
  const uint64_t read = move_pieces(
      written, pace.left(), pace, seconds,
      [&](uint64_t offset, size_t slot) { return queue.read(file.file(), offset, place(slot)); });
  rates.read_bytes_per_s = static_cast<double>(read * kPiece) / seconds;
  rates.direct = file.file().is_direct();
  return rates;
}

}  // namespace spillway
