// SPDX-License-Identifier: Apache-2.0
#include "base/cpu_list.h"

#include <sched.h>

#include <charconv>
#include <memory>

namespace spillway {
namespace {

struct FreeCpuSet {
  void operator()(cpu_set_t* set) const { CPU_FREE(set); }
};

// A mask of kMaxCpus processors, since the kernel's own mask may be larger than cpu_set_t.
class CpuMask {
 public:
  CpuMask() : set_(CPU_ALLOC(kMaxCpus)) {
    if (set_) CPU_ZERO_S(bytes(), set_.get());
  }
  bool read() { return set_ && sched_getaffinity(0, bytes(), set_.get()) == 0; }
  bool apply() const { return set_ && sched_setaffinity(0, bytes(), set_.get()) == 0; }
  void add(int cpu) {
    if (set_) CPU_SET_S(static_cast<size_t>(cpu), bytes(), set_.get());
  }
  bool has(int cpu) const { return CPU_ISSET_S(static_cast<size_t>(cpu), bytes(), set_.get()); }

 private:
  static size_t bytes() { return CPU_ALLOC_SIZE(kMaxCpus); }
  std::unique_ptr<cpu_set_t, FreeCpuSet> set_;
};

std::optional<int> try_take_number(std::string_view& text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || value < 0 || value >= kMaxCpus) return std::nullopt;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return value;
}

}  // namespace

std::optional<std::vector<int>> try_parse_cpu_list(std::string_view text) {
  if (text.ends_with('\n')) text.remove_suffix(1);
  std::vector<int> cpus;
  std::vector<bool> seen(kMaxCpus);
  while (!text.empty()) {
    const auto first = try_take_number(text);
    if (!first) return std::nullopt;
    auto last = first;
    if (text.starts_with('-')) {
      text.remove_prefix(1);
      last = try_take_number(text);
      if (!last || *last < *first) return std::nullopt;
    }
    for (int cpu = *first; cpu <= *last; ++cpu) {
      if (!seen[static_cast<size_t>(cpu)]) cpus.push_back(cpu);
      seen[static_cast<size_t>(cpu)] = true;
    }
    if (text.empty()) break;
    if (!text.starts_with(',')) return std::nullopt;
    text.remove_prefix(1);
    if (text.empty()) return std::nullopt;
  }
  return cpus;
}

std::vector<int> allowed_cpus() {
  std::vector<int> cpus;
  CpuMask mask;
  if (!mask.read()) return cpus;
  for (int cpu = 0; cpu < kMaxCpus; ++cpu) {
    if (mask.has(cpu)) cpus.push_back(cpu);
  }
  return cpus;
}

bool try_restrict_this_thread(std::span<const int> cpus) {
  CpuMask mask;
  for (const int cpu : cpus) {
    if (cpu < 0 || cpu >= kMaxCpus) return false;
    mask.add(cpu);
  }
  return !cpus.empty() && mask.apply();
}

}  // namespace spillway
