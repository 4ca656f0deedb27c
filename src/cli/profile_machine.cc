// SPDX-License-Identifier: Apache-2.0
#include "cli/profile_machine.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <filesystem>
#include <system_error>

#include "base/byte_units.h"
#include "base/error.h"
#include "base/log.h"
#include "base/printable.h"
#include "cli/json_output.h"
#include "cli/terminal.h"
#include "cli/terminal_services.h"
#include "engine/hardware_choice.h"

namespace spillway {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr double kGiga = 1e9, kMicro = 1e-6;

// Refuses to overwrite a file that is not a machine's. Only the cache's own file is replaced if it
// is damaged.
void refuse_foreign(const fs::path& path, bool replace_damaged) {
  std::error_code error;
  if (!fs::exists(path, error)) return;
  try {
    read_hardware_file(path);
  } catch (const Error& problem) {
    SPW_CHECK(replace_damaged, kInvalidArgument, "will not overwrite a file of another kind: {}",
              problem.what());
    log_warning("the machine's file is replaced: {}", problem.what());
  }
}

void print_processor(const Processor& of) {
  print_now(fmt::format("{}: {}, reads {:.4g} GB/s, an op takes at least {:.3g} us\n",
                        printable(of.name), format_bytes(of.memory_bytes),
                        of.read_bytes_per_s / kGiga, of.launch_s / kMicro));
  constexpr int kShown[] = {1, 4, 16, 64, 256, 1024};
  print_now(fmt::format("  {:<24}", "GFLOP/s by tokens"));
  for (const int tokens : kShown) print_now(fmt::format("{:>9}", tokens));
  print_now("\n");
  for (const auto& [type, curve] : of.linear) {
    print_now(fmt::format("  {:<24}", dtype_name(type)));
    for (const int tokens : kShown) print_now(fmt::format("{:>9.4g}", curve.at(tokens) / kGiga));
    print_now("\n");
  }
  std::string attention;
  for (const auto& [type, rates] : of.attention) {
    attention += kv_type_name(type);
    for (const auto& [group, rate] : rates.points())
      attention += fmt::format("{}{:.4g}", group > 1 ? "/" : " ", rate / kGiga);
    attention += ", ";
  }
  print_now(fmt::format(
      "  attention GB/s by KV, for 1/4/8 query heads a key head: {}prompts {:.4g} GFLOP/s\n",
      attention, of.prompt_attention_flop_per_s / kGiga));
}

void print_curve(const char* name, const RateCurve& curve) {
  std::string text;
  for (const auto& [bytes, rate] : curve.points())
    text += fmt::format("{}{} {:.3g}", text.empty() ? "" : ", ",
                        format_bytes(static_cast<uint64_t>(bytes)), rate / kGiga);
  print_now(fmt::format("{}, GB/s by transfer: {}\n", name, text));
}

void print_machine(const Hardware& hardware, const fs::path& path) {
  if (hardware.gpu) print_processor(*hardware.gpu);
  print_processor(hardware.host);
  if (hardware.unified) print_now("one memory for both\n");
  if (hardware.has_device()) {
    print_curve("to the GPU", hardware.to_device);
    print_curve("to the host", hardware.to_host);
    print_now(fmt::format(
        "beside each other the link keeps {:.0f}% and the CPU {:.0f}%; pinning {}\n",
        hardware.link_beside_cpu * 100, hardware.cpu_beside_link * 100,
        hardware.pin_bytes_per_s > 0 ? fmt::format("{:.3g} GB/s", hardware.pin_bytes_per_s / kGiga)
                                     : "is refused"));
  }
  print_now(fmt::format("disk: reads {:.3g} GB/s, writes {:.3g} GB/s, {} free\n",
                        hardware.disk_read / kGiga, hardware.disk_write / kGiga,
                        format_bytes(hardware.disk_bytes)));
  print_now(fmt::format("kept in {}\n", printable_path(path)));
}

}  // namespace

int profile_machine(const ProfileMachineOptions& options) {
  const auto path = options.output.empty() ? try_default_hardware_path() : fs::path(options.output);
  SPW_CHECK(path.has_value(), kInvalidArgument,
            "neither XDG_CACHE_HOME nor HOME is set, so there is no place for the machine's file; "
            "give one with -o");
  refuse_foreign(*path, options.output.empty());
  const SessionOptions& session = options.session;
  const SessionServices services = terminal_services();
  const auto device = services.devices.make(
      {.name = session.device, .threads = session.threads, .gpu_memory = session.gpu_memory});
  const bool discrete = !device->host_visible();
  const auto own_host =
      discrete ? services.devices.make({.name = "cpu", .threads = session.threads}) : nullptr;
  Hardware hardware =
      measure_this_machine(discrete ? *own_host : *device, discrete ? device.get() : nullptr,
                           session.placement.disk_folder(), options.seconds, services);
  // Earlier measurements of models on this machine still hold.
  if (const auto before = try_measured_here(discrete ? own_host->info() : device->info(),
                                            discrete ? &device->info() : nullptr);
      before && options.output.empty())
    hardware.splits = before->splits;
  write_hardware_file(*path, hardware);
  if (options.json) {
    print_json({{"file", path->string()}, {"hardware", json::parse(hardware_to_json(hardware))}});
  } else {
    print_machine(hardware, *path);
  }
  return 0;
}

}  // namespace spillway
