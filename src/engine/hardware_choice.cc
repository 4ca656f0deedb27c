// SPDX-License-Identifier: Apache-2.0
#include "engine/hardware_choice.h"

#include <fmt/format.h>

#include <charconv>
#include <string_view>
#include <system_error>

#include "base/error.h"
#include "base/host_memory.h"
#include "base/log.h"
#include "base/printable.h"
#include "engine/cache_folder.h"
#include "runtime/device_traits.h"
#include "storage/file_writer.h"

namespace spillway {

std::optional<Hardware> try_measured_here(const DeviceInfo& host, const DeviceInfo* gpu) {
  const auto path = try_default_hardware_path();
  std::error_code error;
  if (!path || !std::filesystem::exists(*path, error)) return std::nullopt;
  try {
    Hardware kept = read_hardware_file(*path);
    const bool same = kept.host.name == host.hardware &&
                      (gpu == nullptr || (kept.gpu && kept.gpu->name == gpu->hardware));
    // `splits` are times of linear layers whose rows CPU and GPU share. They hold only for the
    // number of CPU threads with which they were measured.
    if (kept.host.threads != host.threads) kept.splits.clear();
    if (same && !kept.measured.empty()) return kept;
    log_info("{}: not of this machine", printable_path(*path));
  } catch (const Error& problem) {
    log_warning(
        "what was measured of this machine is not used: {}; spillway profile measures again",
        problem.what());
  }
  return std::nullopt;
}

void write_hardware_file(const std::filesystem::path& path, const Hardware& hardware) {
  std::error_code error;
  if (path.has_parent_path()) std::filesystem::create_directories(path.parent_path(), error);
  SPW_CHECK(!error, kIo, "cannot make the folder {}: {}", printable_path(path.parent_path()),
            error.message());
  FileWriter file(path);
  file.write(hardware_to_json(hardware));
  file.commit();
}

std::optional<std::filesystem::path> try_default_hardware_path() {
  const auto folder = try_cache_folder();
  if (!folder) return std::nullopt;
  return *folder / "hardware.json";
}

namespace {

// Returns the index of the GPU that `device` means, or nullopt for the CPU. Throws kInvalidArgument
// for what is neither, and for a GPU that is not among `gpus`.
std::optional<size_t> try_gpu_of(const std::string& device, size_t gpus) {
  if (device == "cpu" || (device == "auto" && gpus == 0)) return std::nullopt;
  if (device == "auto") return 0;
  size_t index = 0;
  constexpr std::string_view kPrefix = "cuda:";
  const char* const end = device.data() + device.size();
  const bool numbered = device.starts_with(kPrefix);
  const bool is_number =
      numbered && std::from_chars(device.data() + kPrefix.size(), end, index).ptr == end;
  SPW_CHECK(device == "cuda" || (is_number && device.size() > kPrefix.size()), kInvalidArgument,
            "--device is '{}'; give auto, cpu, cuda or cuda:N", printable(device));
  SPW_CHECK(index < gpus, kInvalidArgument, "--device {}: the machine has {} GPUs",
            printable(device), gpus);
  return index;
}

}  // namespace

ChosenHardware choose_hardware(const std::string& file_or_name, const std::string& device,
                               const DeviceFactory& devices) {
  if (!file_or_name.empty()) {
    Hardware named = read_hardware(file_or_name);
    std::string how = named.source;
    if (!named.measured.empty()) how = "measured on " + printable(named.measured);
    if (!try_gpu_of(device, named.gpu ? 1 : 0) && named.gpu) {
      named.gpu.reset();
      named.unified = false;
      how = "without its GPU; " + how;
    }
    return {.hardware = std::move(named), .how = std::move(how)};
  }
  const auto cpu = devices.make({.name = "cpu"});
  const std::vector<DeviceInfo> gpus = devices.gpus();
  const auto gpu = try_gpu_of(device, gpus.size());
  ChosenHardware here = this_machine(cpu->info(), gpu ? &gpus[*gpu] : nullptr);
  if (!gpu) here.traits = traits_of(*cpu);
  here.free_host_bytes = static_cast<uint64_t>(host_memory().available_bytes);
  return here;
}

ChosenHardware this_machine(const DeviceInfo& host, const DeviceInfo* gpu) {
  const auto host_bytes = static_cast<uint64_t>(host.memory_bytes),
             gpu_bytes = static_cast<uint64_t>(gpu != nullptr ? gpu->memory_bytes : 0);
  ChosenHardware chosen;
  if (auto kept = try_measured_here(host, gpu)) {
    chosen.how = fmt::format("measured here on {}", printable(kept->measured));
    chosen.hardware = std::move(*kept);
  } else {
    chosen.hardware = nearest_hardware(gpu != nullptr ? gpu->hardware : "", gpu_bytes, host_bytes);
    // `unified` is not cleared if this GPU has memory of its own: the file of a machine with
    // unified memory has no rates of a link between host and GPU, so it can only be planned as
    // unified.
    if (gpu != nullptr && gpu->unified_memory) chosen.hardware.unified = true;
    chosen.how = "not measured: the nearest that ships; `spillway profile` measures";
  }
  chosen.hardware.host = with_threads(chosen.hardware.host, host.threads);
  chosen.hardware.host.memory_bytes = host_bytes;
  if (gpu != nullptr) {
    chosen.hardware.gpu->memory_bytes = gpu_bytes;
  } else {
    chosen.hardware.gpu.reset();
    chosen.hardware.unified = false;
  }
  return chosen;
}

}  // namespace spillway
