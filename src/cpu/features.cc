// SPDX-License-Identifier: Apache-2.0
#include "cpu/features.h"

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
  // Bits of AT_HWCAP and AT_HWCAP2 (arch/arm64/include/uapi/asm/hwcap.h); older headers lack some.
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
// Tiles are 8 KB of state per thread: Linux hands them out on request only, to the whole process.
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

}  // namespace

const CpuFeatures& cpu_features() {
  static const CpuFeatures features = detect();
  return features;
}

}  // namespace spillway
