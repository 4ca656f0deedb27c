// SPDX-License-Identifier: Apache-2.0
// A library to preload into any program that uses the GPU. When the program ends, it prints how the
// GPU's time was spent, kernel by kernel, and the last kernels in their order.
//
//   KERNEL_TIMES=out.txt KERNEL_TIMES_LAST=4000
//   LD_PRELOAD=build/release/bench/libgpu_kernel_times.so
//       build/release/bin/spillway bench dummy:opt-6.7b --batch 32 --device cuda
//
// Because launches overlap there are two sums: all of a kernel's time, and the part in which no
// earlier kernel was still running.
// kernel before it was still running.
#include <cupti.h>
#include <cxxabi.h>
#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace {

struct Run {
  uint64_t begin_ns, end_ns;
  std::string kernel;
  int blocks, threads;
};

struct Tracer {
  decltype(&cuptiActivityGetNextRecord) next_record = nullptr;
  decltype(&cuptiActivityFlushAll) flush_all = nullptr;
  std::mutex mutex;
  std::vector<Run> runs;
};

// Never destroyed, because CUPTI calls back until the very end.
Tracer& tracer() {
  static auto* const instance = new Tracer;
  return *instance;
}

size_t number_from(const char* variable, size_t otherwise) {
  const char* const value = std::getenv(variable);
  return value == nullptr ? otherwise : std::strtoull(value, nullptr, 10);
}

// Returns a kernel's name without namespaces and arguments.
std::string short_name(const std::string& mangled) {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> demangled(
      abi::__cxa_demangle(mangled.c_str(), nullptr, nullptr, &status), &std::free);
  std::string name = demangled ? demangled.get() : mangled;
  for (const std::string part : {"void ", "spillway::cuda::", "(anonymous namespace)::"}) {
    for (size_t at = name.find(part); at != std::string::npos; at = name.find(part))
      name.erase(at, part.size());
  }
  if (const size_t arguments = name.rfind('('); arguments != std::string::npos && arguments > 0)
    name.resize(arguments);
  return name.substr(0, 100);
}

void CUPTIAPI give_buffer(uint8_t** buffer, size_t* bytes, size_t* most_records) {
  *bytes = size_t{8} << 20;
  *buffer = static_cast<uint8_t*>(std::aligned_alloc(8, *bytes));
  *most_records = 0;
}

void CUPTIAPI take_buffer(CUcontext, uint32_t, uint8_t* buffer, size_t, size_t valid_bytes) {
  Tracer& t = tracer();
  const std::lock_guard lock(t.mutex);
  CUpti_Activity* record = nullptr;
  while (t.next_record(buffer, valid_bytes, &record) == CUPTI_SUCCESS) {
    if (record->kind != CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) continue;
    const auto* k = reinterpret_cast<const CUpti_ActivityKernel9*>(record);
    if (k->start == 0) continue;  // the times of this kernel were lost
    t.runs.push_back({k->start, k->end, k->name, k->gridX * k->gridY * k->gridZ,
                      k->blockX * k->blockY * k->blockZ});
  }
  std::free(buffer);
}

void report() {
  Tracer& t = tracer();
  const std::lock_guard lock(t.mutex);
  std::vector<Run>& runs = t.runs;
  if (runs.empty()) return;
  std::sort(runs.begin(), runs.end(),
            [](const Run& a, const Run& b) { return a.begin_ns < b.begin_ns; });
  const size_t last = number_from("KERNEL_TIMES_LAST", runs.size());
  const size_t first = runs.size() - std::min(runs.size(), last);

  struct Total {
    std::vector<double> us;
    double sum = 0, alone = 0;
  };
  std::map<std::string, Total> totals;
  double idle = 0;
  uint64_t busy_until = runs[first].begin_ns;
  for (size_t i = first; i < runs.size(); ++i) {
    const Run& run = runs[i];
    Total& total = totals[short_name(run.kernel)];
    const double us = static_cast<double>(run.end_ns - run.begin_ns) * 1e-3;
    total.us.push_back(us);
    total.sum += us;
    if (run.begin_ns > busy_until) idle += static_cast<double>(run.begin_ns - busy_until) * 1e-3;
    const uint64_t from = std::max(run.begin_ns, busy_until);
    if (run.end_ns > from) total.alone += static_cast<double>(run.end_ns - from) * 1e-3;
    busy_until = std::max(busy_until, run.end_ns);
  }
  const char* const path = std::getenv("KERNEL_TIMES");
  std::FILE* const out = path == nullptr ? stderr : std::fopen(path, "w");
  if (out == nullptr) return;
  std::fprintf(out, "the last %zu of %zu kernels: %.1f us, of which none ran in %.1f us\n",
               runs.size() - first, runs.size(),
               static_cast<double>(busy_until - runs[first].begin_ns) * 1e-3, idle);
  std::vector<std::pair<std::string, Total>> order(totals.begin(), totals.end());
  std::sort(order.begin(), order.end(),
            [](const auto& a, const auto& b) { return a.second.sum > b.second.sum; });
  std::fprintf(out, "%12s %12s %7s %10s\n", "sum us", "alone us", "runs", "median us");
  for (auto& [name, total] : order) {
    std::nth_element(total.us.begin(), total.us.begin() + total.us.size() / 2, total.us.end());
    std::fprintf(out, "%12.1f %12.1f %7zu %10.2f  %s\n", total.sum, total.alone, total.us.size(),
                 total.us[total.us.size() / 2], name.c_str());
  }
  const size_t listed = std::min(runs.size(), number_from("KERNEL_TIMES_LISTED", 60));
  std::fprintf(out, "\n%12s %8s %8s %16s\n", "at us", "gap", "us", "blocks x threads");
  for (size_t i = runs.size() - listed; i < runs.size(); ++i) {
    const Run& run = runs[i];
    const double at = static_cast<double>(run.begin_ns - runs[runs.size() - listed].begin_ns);
    const double gap =
        i == 0 ? 0 : static_cast<double>(run.begin_ns) - static_cast<double>(runs[i - 1].end_ns);
    std::fprintf(out, "%12.2f %8.2f %8.2f %9d x %4d  %s\n", at * 1e-3, gap * 1e-3,
                 static_cast<double>(run.end_ns - run.begin_ns) * 1e-3, run.blocks, run.threads,
                 short_name(run.kernel).c_str());
  }
  if (out != stderr) std::fclose(out);
}

__attribute__((constructor)) void start() {
  unsetenv("LD_PRELOAD");  // programs that this one starts are not traced
  void* library = nullptr;
  const char* const named = std::getenv("KERNEL_TIMES_CUPTI");
  for (const char* name : {named, "libcupti.so", "libcupti.so.13", "libcupti.so.12"}) {
    if (library == nullptr && name != nullptr) library = dlopen(name, RTLD_NOW | RTLD_GLOBAL);
  }
  const auto find = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
    return function != nullptr;
  };
  Tracer& t = tracer();
  decltype(&cuptiActivityRegisterCallbacks) set_callbacks = nullptr;
  decltype(&cuptiActivityEnable) enable = nullptr;
  if (library == nullptr || !find(set_callbacks, "cuptiActivityRegisterCallbacks") ||
      !find(enable, "cuptiActivityEnable") || !find(t.next_record, "cuptiActivityGetNextRecord") ||
      !find(t.flush_all, "cuptiActivityFlushAll") ||
      set_callbacks(give_buffer, take_buffer) != CUPTI_SUCCESS ||
      enable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) != CUPTI_SUCCESS) {
    std::fprintf(stderr,
                 "gpu_kernel_times: no libcupti.so that works; name one in KERNEL_TIMES_CUPTI\n");
    return;
  }
  // CUDA has shut down before report() runs at exit, so a thread fetches records until then.
  std::thread([] {
    for (;;) {
      std::this_thread::sleep_for(std::chrono::milliseconds(30));
      (void)tracer().flush_all(1);
    }
  }).detach();
  std::atexit(report);
}

}  // namespace
