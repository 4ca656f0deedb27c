// SPDX-License-Identifier: Apache-2.0
#include "base/fault_points.h"

#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <functional>
#include <limits>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "base/printable.h"

namespace spillway {
namespace fault_detail {

std::atomic<int> state{kUnknown};

}  // namespace fault_detail

namespace {

using fault_detail::state;

constexpr uint64_t kForEver = std::numeric_limits<uint64_t>::max();

struct KindName {
  std::string_view name;
  FaultKind kind;
  int error;
};
constexpr KindName kKinds[] = {
    {"eio", FaultKind::kEio, EIO},          {"enospc", FaultKind::kEnospc, ENOSPC},
    {"eintr", FaultKind::kEintr, EINTR},    {"einval", FaultKind::kEinval, EINVAL},
    {"enomem", FaultKind::kEnomem, ENOMEM}, {"enosys", FaultKind::kEnosys, ENOSYS},
    {"short", FaultKind::kShort, 0},        {"eopnotsupp", FaultKind::kEopnotsupp, EOPNOTSUPP},
};

int error_of(FaultKind kind) {
  for (const KindName& each : kKinds) {
    if (each.kind == kind) return each.error;
  }
  return EIO;
}

struct ArmedFault {
  std::string point;
  uint64_t from, count;  // in hits of the point
  FaultKind kind;
};

struct Armed {
  std::mutex mutex;
  std::vector<ArmedFault> faults;
  std::map<std::string, uint64_t, std::less<>> hits;
};

Armed& armed() {
  static Armed* const instance = new Armed;  // points may be reached while the process ends
  return *instance;
}

ArmedFault parse_fault(std::string_view text) {
  const size_t kind_at = text.rfind(':');
  const size_t count_at = kind_at == std::string_view::npos || kind_at == 0
                              ? std::string_view::npos
                              : text.rfind(':', kind_at - 1);
  SPW_CHECK(count_at != std::string_view::npos && count_at > 0, kInvalidArgument,
            "fault '{}' is not point:N:kind", printable(text));
  std::string_view number = text.substr(count_at + 1, kind_at - count_at - 1);
  const std::string_view name = text.substr(kind_at + 1);
  ArmedFault fault{
      .point = std::string(text.substr(0, count_at)), .from = 0, .count = 1, .kind = {}};
  if (number.ends_with('+')) {
    fault.count = kForEver;
    number.remove_suffix(1);
  }
  const auto [end, error] =
      std::from_chars(number.data(), number.data() + number.size(), fault.from);
  SPW_CHECK(error == std::errc() && end == number.data() + number.size() && fault.from > 0,
            kInvalidArgument, "fault '{}': N is a number from 1", printable(text));
  for (const KindName& each : kKinds) {
    if (each.name == name) {
      fault.kind = each.kind;
      return fault;
    }
  }
  fail(ErrorCode::kInvalidArgument,
       "fault '{}': kinds are eio, enospc, eintr, einval, enomem, enosys, eopnotsupp and short",
       printable(text));
}

std::vector<ArmedFault> parse_faults(std::string_view text) {
  std::vector<ArmedFault> faults;
  while (!text.empty()) {
    const size_t comma = text.find(',');
    faults.push_back(parse_fault(text.substr(0, comma)));
    text.remove_prefix(comma == std::string_view::npos ? text.size() : comma + 1);
  }
  return faults;
}

void add_locked(Armed& all, std::vector<ArmedFault> faults) {
  for (ArmedFault& fault : faults) {
    fault.from += all.hits[fault.point];
    all.faults.push_back(std::move(fault));
  }
  state = all.faults.empty() ? fault_detail::kOff : fault_detail::kOn;
}

// Reads the environment before anything else is armed, so that `state` leaves kUnknown only once.
void read_environment_locked(Armed& all) {
  if (state != fault_detail::kUnknown) return;
  const char* text = std::getenv("SPILLWAY_FAULTS");
  add_locked(all, text == nullptr ? std::vector<ArmedFault>() : parse_faults(text));
}

}  // namespace

namespace fault_detail {

int64_t hit(const char* point, int64_t result) {
  Armed& all = armed();
  const std::lock_guard lock(all.mutex);
  try {
    read_environment_locked(all);
  } catch (const Error& error) {
    log_warning("SPILLWAY_FAULTS is ignored: {}", error.what());
    state = kOff;
  }
  if (all.faults.empty()) return result;
  auto found = all.hits.find(point);
  if (found == all.hits.end()) found = all.hits.emplace(point, 0).first;
  const uint64_t now = ++found->second;
  for (const ArmedFault& fault : all.faults) {
    if (fault.point != point || now < fault.from || now - fault.from >= fault.count) continue;
    if (fault.kind != FaultKind::kShort) return -error_of(fault.kind);
    return result > 0 ? result / 2 : result;
  }
  return result;
}

}  // namespace fault_detail

void arm_fault(std::string_view point, uint64_t nth, FaultKind kind, uint64_t count) {
  SPW_ASSERT(nth > 0 && count > 0);
  Armed& all = armed();
  const std::lock_guard lock(all.mutex);
  read_environment_locked(all);
  add_locked(all, {{.point = std::string(point), .from = nth, .count = count, .kind = kind}});
}

void arm_faults(std::string_view text) {
  std::vector<ArmedFault> faults = parse_faults(text);
  Armed& all = armed();
  const std::lock_guard lock(all.mutex);
  read_environment_locked(all);
  add_locked(all, std::move(faults));
}

void disarm_faults() {
  Armed& all = armed();
  const std::lock_guard lock(all.mutex);
  all.faults.clear();
  all.hits.clear();
  state = fault_detail::kOff;
}

uint64_t fault_hits(std::string_view point) {
  Armed& all = armed();
  const std::lock_guard lock(all.mutex);
  const auto found = all.hits.find(point);
  return found == all.hits.end() ? 0 : found->second;
}

void arm_faults_from_environment() {
  Armed& all = armed();
  const std::lock_guard lock(all.mutex);
  read_environment_locked(all);
}

}  // namespace spillway
