// SPDX-License-Identifier: Apache-2.0
#include "cli/local_devices.h"

#include <optional>
#include <string_view>

#include "base/cpu_list.h"
#include "base/error.h"
#include "base/log.h"
#include "cpu/cpu_device.h"
#include "cuda/cuda.h"
#include "engine/placement_options.h"

namespace spillway {
namespace {

// Parses --threads: a plain number is a count, anything longer a list of processors.
CpuDeviceOptions parse_threads(const std::string& text) {
  const bool number =
      !text.empty() && text.size() <= 5 && text.find_first_not_of("0123456789") == text.npos;
  if (number) return {.threads = std::stoi(text), .cpus = {}};
  const auto cpus = try_parse_cpu_list(text);
  SPW_CHECK(cpus && !cpus->empty(), kInvalidArgument,
            "--threads is '{}'; give a number, or processors such as 0-7,16", text);
  return {.threads = 0, .cpus = *cpus};
}

// Returns the GPU that `name` selects, or nullopt for the CPU.
std::optional<int> try_gpu_index(const std::string& name) {
  if (name == "cpu") return std::nullopt;
  if (name == "cuda") return 0;
  if (name == "auto") {
    return list_cuda_devices().devices.empty() ? std::nullopt : std::optional(0);
  }
  constexpr std::string_view kPrefix = "cuda:";
  const std::string digits =
      name.starts_with(kPrefix) ? name.substr(kPrefix.size()) : std::string();
  SPW_CHECK(!digits.empty() && digits.size() <= 3 &&
                digits.find_first_not_of("0123456789") == digits.npos,
            kInvalidArgument,
            "no device '{}'; give cpu, cuda, cuda:N or auto (see spillway inspect --devices)",
            name);
  return std::stoi(digits);
}

// Makes the devices of this machine. Stateless.
class LocalDevices final : public DeviceFactory {
 public:
  std::unique_ptr<Device> make(const DeviceChoice& choice) const override;
  std::vector<DeviceInfo> gpus() const override { return list_cuda_devices().devices; }
};

std::unique_ptr<Device> LocalDevices::make(const DeviceChoice& choice) const {
  const auto& [name, threads, gpu_memory, host_memory] = choice;
  CudaDeviceOptions cuda;
  // Also parsed for other devices, so that a typing error shows on every machine.
  if (!gpu_memory.empty()) cuda.memory_bytes = parse_memory(gpu_memory, "--gpu-memory");
  if (const std::optional<int> gpu = try_gpu_index(name)) {
    SPW_CHECK(gpu_memory.empty() || cuda.memory_bytes > 0, kInvalidArgument,
              "--gpu-memory is 0; use --device cpu");
    cuda.index = *gpu;
    return make_cuda_device(cuda);
  }
  CpuDeviceOptions options = parse_threads(threads);
  if (!host_memory.empty()) {
    options.memory_bytes = parse_memory(host_memory, "--host-memory");
    SPW_CHECK(options.memory_bytes > 0, kInvalidArgument,
              "--host-memory is 0; nothing runs without memory");
  }
  const int available = available_threads();
  if (options.threads > available) {
    log_warning("{} threads on {} processors take turns; fewer are faster", options.threads,
                available);
  }
  auto device = std::make_unique<CpuDevice>(options);
  // Restricts this thread to all of the given processors and not to one, since threads that read
  // files inherit the restriction. The pool's workers are pinned already, so this thread runs on
  // the processor that is left.
  if (!options.cpus.empty()) {
    SPW_CHECK(try_restrict_this_thread(options.cpus), kInvalidArgument,
              "the processors {} cannot be used here", threads);
  }
  return device;
}

}  // namespace

const DeviceFactory& local_devices() {
  static const LocalDevices kDevices;
  return kDevices;
}

}  // namespace spillway
