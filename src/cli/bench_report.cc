// SPDX-License-Identifier: Apache-2.0
#include "cli/bench_report.h"

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <string>

#include "base/byte_units.h"
#include "base/printable.h"
#include "cli/attention_report.h"
#include "cli/terminal.h"

namespace spillway {

using nlohmann::json;

namespace {

// Returns the peak bytes of a tier by purpose. Mapped weights count as always resident.
json usage_json(Device::Usage usage, uint64_t mapped_bytes) {
  usage.peaks[static_cast<int>(MemoryTag::kWeights)] += mapped_bytes;
  usage.peak_bytes += mapped_bytes;
  json tags = json::object();
  for (int tag = 0; tag < kMemoryTagCount; ++tag) {
    if (usage.peaks[tag] > 0) tags[memory_tag_name(static_cast<MemoryTag>(tag))] = usage.peaks[tag];
  }
  return {{"peak_bytes", usage.peak_bytes}, {"peak_bytes_by_tag", tags}};
}

json link_json(uint64_t bytes, double seconds) {
  return {{"bytes", bytes}, {"gb_per_s", static_cast<double>(bytes) / seconds / 1e9}};
}

}  // namespace

json session_json(const SessionOptions& options, Session& session) {
  // Deterministic mode ignores the tuning table.
  const LoadedTuning* tuning =
      session.tuning && !session.settings.deterministic ? &*session.tuning : nullptr;
  json tiers = json::object();
  const uint64_t mapped = session.loaded->weights.mapped_bytes();
  if (session.own_host) tiers["gpu"] = usage_json(session.device->usage(), 0);
  tiers["host"] = usage_json(session.host().usage(), mapped);
  return {{"model", options.model},
          {"device", session.device->info().hardware},
          {"threads", session.host().info().threads},
          {"weight_type", dtype_name(session.loaded->model.main_dtype())},
          {"weight_bytes", session.loaded->model.weight_bytes()},
          {"kv_type", kv_type_name(session.settings.kv_type)},
          {"compress_weights", session.plan().compress_weights.value_or(false)},
          {"tuning", tuning == nullptr ? json(nullptr)
                                       : json{{"file", tuning->path.string()},
                                              {"shapes", tuning->table.measured().size()}}},
          {"load_s", session.load_seconds},
          {"weights_made", session.loaded->weights.counts().made},
          {"weights_kept", session.loaded->weights.counts().kept},
          {"mapped_weight_bytes", mapped},
          {"plan", json::parse(plan_to_json(session.plan()))},
          {"tiers", tiers}};
}

json memory_json(Session& session, int64_t tokens, int64_t sequences) {
  const Footprint needs = session.resolved_for(tokens, sequences).needs;
  // Both sides add up each purpose's own peak, since the footprint does not say when each one
  // occurs.
  const auto owned = [](const MemoryUsage& usage) {
    uint64_t bytes = 0;
    for (int tag = 0; tag < kMemoryTagCount; ++tag) {
      if (static_cast<MemoryTag>(tag) != MemoryTag::kWorkspace) bytes += usage.peaks[tag];
    }
    return bytes;
  };
  const auto tier = [&](const MemoryUsage& predicted, const MemoryUsage& measured,
                        uint64_t workspace) {
    return json{
        {"predicted_bytes", owned(predicted)},
        {"measured_bytes", owned(measured)},
        {"predicted_workspace_bytes", workspace},
        {"measured_workspace_bytes", measured.peaks[static_cast<int>(MemoryTag::kWorkspace)]}};
  };
  const bool discrete = session.own_host != nullptr;
  json out = json::object();
  if (discrete) out["gpu"] = tier(needs.device, session.device->usage(), needs.workspace);
  out["host"] = tier(needs.of_host(discrete), session.host().usage(),
                     discrete ? needs.host_workspace : needs.workspace);
  return out;
}

json mean_and_max(const std::vector<double>& values) {
  const double sum = std::accumulate(values.begin(), values.end(), 0.0);
  return {{"mean", sum / static_cast<double>(values.size())}, {"max", std::ranges::max(values)}};
}

json phase_json(const BenchPhase& phase) {
  const WeightStream::Stats& weights = phase.moved.weights;
  const KvSwap::Stats& swap = phase.moved.swap;
  const ResidualStore::Stats& residual = phase.moved.activations;
  const HostAttention::Stats& cpu = phase.moved.host_attention;
  const HostLinear::Stats& linear = phase.moved.host_linear;
  json links = json::object();
  const auto link = [&](const char* name, uint64_t bytes) {
    links[name] = link_json(bytes, phase.seconds);
  };
  link("host_to_gpu_weights", weights.host_bytes);
  link("disk_read_weights", weights.disk_bytes);
  link("host_to_gpu_kv", swap.to_device_bytes);
  link("host_to_gpu_v_rows", swap.v_read_bytes);
  link("gpu_to_host_kv", swap.to_host_bytes);
  link("disk_read_kv", swap.disk_read_bytes);
  link("disk_write_kv", swap.disk_written_bytes);
  link("host_to_gpu_activations", residual.to_device_bytes);
  link("gpu_to_host_activations", residual.to_host_bytes);
  link("disk_read_activations", residual.disk_read_bytes);
  link("disk_write_activations", residual.disk_written_bytes);
  link("host_to_gpu_attention", cpu.to_device_bytes);
  link("gpu_to_host_attention", cpu.to_host_bytes);
  link("host_to_gpu_linear", linear.to_device_bytes);
  link("gpu_to_host_linear", linear.to_host_bytes);
  json stalls = json::object();
  double stalled = 0;
  for (int cause = 0; cause < kStallCauseCount; ++cause) {
    stalls[stall_cause_name(static_cast<StallCause>(cause))] =
        phase.moved.stall_s[static_cast<size_t>(cause)];
    stalled += phase.moved.stall_s[static_cast<size_t>(cause)];
  }
  return {{"seconds", phase.seconds},
          {"steps", phase.steps},
          {"links", links},
          {"stall_s", stalls},
          {"cpu_attention",
           {{"seconds", cpu.compute_s},
            {"busy", cpu.compute_s / phase.seconds},
            {"kv_bytes", cpu.kv_bytes},
            {"gb_per_s",
             cpu.compute_s > 0 ? static_cast<double>(cpu.kv_bytes) / cpu.compute_s / 1e9 : 0}}},
          {"cpu_linear",
           {{"seconds", linear.compute_s},
            {"busy", linear.compute_s / phase.seconds},
            {"weight_bytes", linear.weight_bytes},
            {"gb_per_s", linear.compute_s > 0
                             ? static_cast<double>(linear.weight_bytes) / linear.compute_s / 1e9
                             : 0}}},
          // With --no-overlap everything runs one after the other, and these are the terms of a
          // step (FlexGen, table 8).
          {"terms_s",
           {{"compute", std::max(0.0, phase.seconds - stalled)},
            {"activations", stalls[stall_cause_name(StallCause::kActivations)]},
            {"load_weights", weights.load_s},
            {"load_kv", swap.load_s},
            {"store_kv", swap.store_s},
            {"cpu_attention", cpu.compute_s}}}};
}

json timeline_json(const Timeline& timeline, const BenchRun& run) {
  json phases = json::object();
  for (const bool prompts : {true, false}) {
    double seconds = 0;
    std::array<double, kTimelineLanes> busy = {};
    std::map<std::string, Timeline::SharedLinear> linears;
    for (const BenchRun::Stretch& stretch : run.stretches) {
      if (stretch.has_prompts != prompts) continue;
      seconds += stretch.end_s - stretch.begin_s;
      for (int lane = 0; lane < kTimelineLanes; ++lane) {
        busy[static_cast<size_t>(lane)] +=
            timeline.busy_s(static_cast<TimelineLane>(lane), stretch.begin_s, stretch.end_s);
      }
      for (const auto& [name, of] : timeline.shared_linears(stretch.begin_s, stretch.end_s)) {
        linears[name].count += of.count;
        linears[name].seconds += of.seconds;
        linears[name].cpu_s += of.cpu_s;
        linears[name].to_gpu_s += of.to_gpu_s;
      }
    }
    if (seconds <= 0) continue;
    const auto share = [&](TimelineLane lane) { return busy[static_cast<size_t>(lane)] / seconds; };
    json shared = json::object();
    for (const auto& [name, of] : linears) {
      shared[name] = {{"count", of.count},
                      {"seconds", of.seconds},
                      {"cpu", of.cpu_s / of.seconds},
                      {"to_gpu", of.to_gpu_s / of.seconds}};
    }
    phases[prompts ? "prefill" : "decode"] = {{"seconds", seconds},
                                              {"busy",
                                               {{"gpu", share(TimelineLane::kGpu)},
                                                {"cpu", share(TimelineLane::kCpu)},
                                                {"to_gpu", share(TimelineLane::kToGpu)},
                                                {"to_host", share(TimelineLane::kToHost)}}},
                                              {"shared_linears", shared}};
  }
  return phases;
}

void print_timeline(const json& timeline) {
  for (const auto& [name, phase] : timeline["phases"].items()) {
    const json& busy = phase["busy"];
    const auto percent = [](const json& share) { return share.get<double>() * 100; };
    print_now(fmt::format(
        "{:<9} busy  GPU {:.0f}%  CPU {:.0f}%  to the GPU {:.0f}%  to the host {:.0f}%\n", name,
        percent(busy["gpu"]), percent(busy["cpu"]), percent(busy["to_gpu"]),
        percent(busy["to_host"])));
    for (const auto& [linear, of] : phase["shared_linears"].items()) {
      print_now(fmt::format("{:<9} in {}: CPU {:.0f}%, to the GPU {:.0f}% of {:.1f} ms\n", "",
                            linear, percent(of["cpu"]), percent(of["to_gpu"]),
                            of["seconds"].get<double>() * 1e3));
    }
  }
  print_now(fmt::format("timeline  {}\n", printable_path(timeline["file"].get<std::string>())));
}

void print_phase(const char* name, const json& phase) {
  std::string line;
  for (const auto& [link, moved] : phase["links"].items()) {
    if (moved["bytes"].get<uint64_t>() == 0) continue;
    line += fmt::format("  {} {} ({:.1f} GB/s)", link, format_bytes(moved["bytes"].get<uint64_t>()),
                        moved["gb_per_s"].get<double>());
  }
  if (phase["cpu_attention"]["kv_bytes"].get<uint64_t>() > 0) {
    line += fmt::format("  CPU attention {:.0f}% busy, {:.1f} GB/s",
                        phase["cpu_attention"]["busy"].get<double>() * 100,
                        phase["cpu_attention"]["gb_per_s"].get<double>());
  }
  if (line.empty()) return;
  print_now(fmt::format("{:<9} moved{}\n", name, line));
  std::string waited;
  for (const auto& [cause, seconds] : phase["stall_s"].items()) {
    if (seconds.get<double>() > 0)
      waited += fmt::format("  {} {:.3f} s", cause, seconds.get<double>());
  }
  std::string terms;
  for (const auto& [term, seconds] : phase["terms_s"].items()) {
    if (seconds.get<double>() > 0)
      terms += fmt::format("  {} {:.3f} s", term, seconds.get<double>());
  }
  print_now(fmt::format("{:<9} waited for{}\n", "", waited.empty() ? "  nothing" : waited));
  if (!terms.empty()) print_now(fmt::format("{:<9} terms{}\n", "", terms));
}

void print_tiers_and_tuning(const json& out) {
  for (const auto& [tier, usage] : out["tiers"].items()) {
    std::string tags;
    for (const auto& [tag, bytes] : usage["peak_bytes_by_tag"].items())
      tags += fmt::format("{}{} {}", tags.empty() ? "" : ", ", tag,
                          format_bytes(bytes.get<uint64_t>()));
    print_now(fmt::format("{:<9} at most {}: {}\n", tier,
                          format_bytes(usage["peak_bytes"].get<uint64_t>()), tags));
  }
  if (!out["attention_topk"].is_null() && out["attention_topk"].get<double>() > 0) {
    print_now(
        describe_attention({.v_bytes = out["attention_v_bytes"].get<uint64_t>(),
                            .dense_v_bytes = out["attention_v_bytes_dense"].get<uint64_t>()}));
  }
  if (!out["tuning"].is_null()) {
    print_now(fmt::format("tuning    {} ({} shapes)\n",
                          printable_path(out["tuning"]["file"].get<std::string>()),
                          out["tuning"]["shapes"].get<size_t>()));
  }
}

}  // namespace spillway
