// SPDX-License-Identifier: Apache-2.0
#include "cpu/features.h"

#include <hwy/targets.h>

#include <algorithm>
#include <atomic>
#include <iterator>
#include <vector>

#include "base/error.h"

#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#elif defined(__x86_64__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace spillway {
namespace {

#if defined(__aarch64__) && defined(__linux__)
CpuFeatures detect() {
  // The numbers are bits of AT_HWCAP and AT_HWCAP2 (arch/arm64/include/uapi/asm/hwcap.h), some of
  // which older headers lack.
  const unsigned long first = getauxval(AT_HWCAP), second = getauxval(AT_HWCAP2);
  const auto has = [](unsigned long word, int bit) { return (word >> bit & 1) != 0; };
  CpuFeatures features;
  features.fp16 = has(first, 10);
  features.dotprod = has(first, 20);
  features.fp16fml = features.fp16 && has(first, 23);
  features.i8mm = features.dotprod && has(second, 13);
  features.bf16 = has(second, 14);
  return features;
}
#elif defined(__x86_64__) && defined(__linux__)
// Tiles are 8 KB of state per thread, so Linux grants them on request only, to the whole process.
bool ask_for_tiles() {
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

CpuFeatures detect() {
  __builtin_cpu_init();
  CpuFeatures features;
  features.avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                  __builtin_cpu_supports("f16c");
  features.avx_vnni = features.avx2 && __builtin_cpu_supports("avxvnni");
  features.avx512_vnni = features.avx2 && __builtin_cpu_supports("avx512f") &&
                         __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni");
  features.avx512_bf16 = features.avx512_vnni && __builtin_cpu_supports("avx512bf16");
  features.amx_bf16 = features.avx512_bf16 && __builtin_cpu_supports("amx-tile") &&
                      __builtin_cpu_supports("amx-bf16") && ask_for_tiles();
  features.amx_int8 = features.amx_bf16 && __builtin_cpu_supports("amx-int8");
  return features;
}
#else
CpuFeatures detect() { return {}; }
#endif

// All of Highway's targets above AVX2.
constexpr int64_t kAvx512Targets = HWY_AVX3 | HWY_AVX3_DL;

// A group of instructions under the name that people give it.
struct NamedFeature {
  std::string_view name;
  std::string_view flags;  // the processor flags that go with it, as prefixes of their names
  int64_t targets;         // Highway's targets to disable
  void (*leave_out)(CpuFeatures&);
};

constexpr NamedFeature kNamed[] = {
    {"bf16", "bf16", 0, [](CpuFeatures& f) { f.bf16 = false; }},
    {"i8mm", "i8mm", 0, [](CpuFeatures& f) { f.i8mm = false; }},
    {"fp16fml", "fp16fml", 0, [](CpuFeatures& f) { f.fp16fml = false; }},
    {"dotprod", "dotprod i8mm", 0, [](CpuFeatures& f) { f.dotprod = f.i8mm = false; }},
    {"amx", "amx", 0, [](CpuFeatures& f) { f.amx_bf16 = f.amx_int8 = false; }},
    {"avx512_bf16", "avx512_bf16 amx", 0,
     [](CpuFeatures& f) { f.avx512_bf16 = f.amx_bf16 = f.amx_int8 = false; }},
    {"avx512", "avx512 amx", kAvx512Targets,
     [](CpuFeatures& f) { f.avx512_vnni = f.avx512_bf16 = f.amx_bf16 = f.amx_int8 = false; }},
    {"avx_vnni", "avx_vnni", 0, [](CpuFeatures& f) { f.avx_vnni = false; }},
    {"avx2", "avx2 fma f16c avx_vnni avx512 amx", kAvx512Targets | HWY_AVX2,
     [](CpuFeatures& f) {
       f.avx2 = f.avx_vnni = f.avx512_vnni = f.avx512_bf16 = f.amx_bf16 = f.amx_int8 = false;
     }},
};

// These are set before there are threads.
std::vector<std::string_view> g_left_out;  // flags that were left out
std::atomic<bool> g_asked{false};
CpuFeatures& features() {
  static CpuFeatures features = detect();
  return features;
}

}  // namespace

const CpuFeatures& cpu_features() {
  g_asked.store(true, std::memory_order_relaxed);
  return features();
}

void leave_out_cpu_features(std::string_view names) {
  SPW_ASSERT(!g_asked.load(std::memory_order_relaxed));
  int64_t targets = 0;
  while (!names.empty()) {
    const size_t comma = std::min(names.find(','), names.size());
    const std::string_view name = names.substr(0, comma);
    names.remove_prefix(std::min(comma + 1, names.size()));
    const auto* found = std::find_if(std::begin(kNamed), std::end(kNamed),
                                     [&](const NamedFeature& f) { return f.name == name; });
    SPW_CHECK(found != std::end(kNamed), kInvalidArgument,
              "no instructions are called '{}'; give some of {}", name, cpu_feature_names());
    found->leave_out(features());
    targets |= found->targets;
    g_left_out.push_back(found->flags);
  }
  hwy::DisableTargets(targets);
}

bool is_left_out(std::string_view flag) {
  for (std::string_view flags : g_left_out) {
    while (!flags.empty()) {
      const size_t space = std::min(flags.find(' '), flags.size());
      if (flag.starts_with(flags.substr(0, space))) return true;
      flags.remove_prefix(std::min(space + 1, flags.size()));
    }
  }
  return false;
}

std::string cpu_feature_names() {
  std::string names;
  for (const NamedFeature& feature : kNamed) {
    if (!names.empty()) names += ", ";
    names += feature.name;
  }
  return names;
}

}  // namespace spillway
