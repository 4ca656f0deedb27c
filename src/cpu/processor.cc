// SPDX-License-Identifier: Apache-2.0
#include "cpu/processor.h"

#include <hwy/highway.h>

#include <charconv>
#include <fstream>
#include <string_view>
#include <utility>

#if defined(__aarch64__)
#include <sys/auxv.h>
#endif

#include "cpu/features.h"

namespace spillway {
namespace {

// Returns the value of the first line "key : value" of a /proc file, or "".
std::string proc_value(const char* path, std::string_view key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(key)) continue;
    const size_t colon = line.find(':');
    if (colon == std::string::npos) continue;
    const size_t begin = line.find_first_not_of(" \t", colon + 1);
    if (begin == std::string::npos) return "";
    return line.substr(begin, line.find_last_not_of(" \t") + 1 - begin);
  }
  return "";
}

[[maybe_unused]] unsigned parse_hex(std::string_view text) {
  if (text.starts_with("0x")) text.remove_prefix(2);
  unsigned value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value, 16);
  return value;
}

// Returns the name of a core by MIDR implementer << 12 | part, as /proc/cpuinfo gives them.
[[maybe_unused]] std::string_view arm_core_name(unsigned id) {
  constexpr std::pair<unsigned, std::string_view> kCores[] = {
      {0x41d03, "Cortex-A53"},    {0x41d05, "Cortex-A55"},  {0x41d07, "Cortex-A57"},
      {0x41d08, "Cortex-A72"},    {0x41d0a, "Cortex-A75"},  {0x41d0b, "Cortex-A76"},
      {0x41d0c, "Neoverse-N1"},   {0x41d0d, "Cortex-A77"},  {0x41d40, "Neoverse-V1"},
      {0x41d41, "Cortex-A78"},    {0x41d44, "Cortex-X1"},   {0x41d46, "Cortex-A510"},
      {0x41d47, "Cortex-A710"},   {0x41d48, "Cortex-X2"},   {0x41d49, "Neoverse-N2"},
      {0x41d4f, "Neoverse-V2"},   {0x41d80, "Cortex-A520"}, {0x41d81, "Cortex-A720"},
      {0x41d83, "Neoverse-V3AE"}, {0x41d84, "Neoverse-V3"}, {0x41d8e, "Neoverse-N3"},
      {0x46001, "A64FX"},         {0x51001, "Oryon"},       {0x61022, "Apple M1"},
      {0x61023, "Apple M1"},      {0xc0ac3, "Ampere-1"},    {0xc0ac4, "Ampere-1a"},
  };
  for (const auto& [core, name] : kCores) {
    if (core == id) return name;
  }
  return "";
}

#if defined(__aarch64__)
// The numbers are bits of AT_HWCAP and AT_HWCAP2 (arch/arm64/include/uapi/asm/hwcap.h), some of
// which older headers lack.
std::string instruction_sets() {
  constexpr std::pair<int, std::string_view> kFirst[] = {
      {1, "asimd"}, {10, "fp16"}, {20, "dotprod"}, {22, "sve"}, {23, "fp16fml"}};
  constexpr std::pair<int, std::string_view> kSecond[] = {
      {1, "sve2"}, {13, "i8mm"}, {14, "bf16"}, {23, "sme"}};
  const unsigned long first = getauxval(AT_HWCAP), second = getauxval(AT_HWCAP2);
  std::string names;
  const auto add = [&](std::string_view name) {
    if (is_left_out(name)) return;
    if (!names.empty()) names += ' ';
    names += name;
  };
  for (const auto& [bit, name] : kFirst) {
    if ((first >> bit) & 1) add(name);
  }
  for (const auto& [bit, name] : kSecond) {
    if ((second >> bit) & 1) add(name);
  }
  return names;
}
#else
std::string instruction_sets() {
  const std::string flags = " " + proc_value("/proc/cpuinfo", "flags") + " ";
  std::string names;
  for (const std::string_view name :
       {"sse4_2", "avx", "f16c", "fma", "avx2", "avx_vnni", "avx512f", "avx512bw", "avx512_vnni",
        "avx512_bf16", "avx512_fp16", "amx_tile", "amx_int8", "amx_bf16"}) {
    if (flags.find(" " + std::string(name) + " ") == std::string::npos) continue;
    if (is_left_out(name)) continue;
    if (!names.empty()) names += ' ';
    names += name;
  }
  return names;
}
#endif

}  // namespace

std::string processor_name() {
#if defined(__aarch64__)
  const unsigned implementer = parse_hex(proc_value("/proc/cpuinfo", "CPU implementer"));
  const unsigned part = parse_hex(proc_value("/proc/cpuinfo", "CPU part"));
  const std::string_view name = arm_core_name(implementer << 12 | part);
  return name.empty() ? "aarch64" : std::string(name);
#else
  const std::string name = proc_value("/proc/cpuinfo", "model name");
  return name.empty() ? "x86-64" : name;
#endif
}

std::string processor_features() {
  const int64_t targets = hwy::SupportedTargets() & HWY_TARGETS;
  return instruction_sets() + "; vectors: " + hwy::TargetName(targets & -targets);
}

}  // namespace spillway
