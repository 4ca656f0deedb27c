// SPDX-License-Identifier: Apache-2.0
// spillway bench: the speed of prefill and decode, what moved meanwhile, and what waited.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>

#include "base/byte_units.h"
#include "base/error.h"
#include "base/printable.h"
#include "cli/attention_report.h"
#include "cli/bench_workload.h"
#include "cli/commands.h"
#include "cli/json_output.h"
#include "cli/session.h"
#include "cli/terminal.h"

namespace spillway {
namespace {

using nlohmann::json;

struct BenchOptions {
  SessionOptions session;
  WorkloadSize size;
  int repeat = 3;
  bool json = false;
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

// What a tier holds at most, by what it is for.
json usage_json(const Device::Usage& usage) {
  json tags = json::object();
  for (int tag = 0; tag < kMemoryTagCount; ++tag) {
    if (usage.peaks[tag] > 0) tags[memory_tag_name(static_cast<MemoryTag>(tag))] = usage.peaks[tag];
  }
  return {{"peak_bytes", usage.peak_bytes}, {"peak_bytes_by_tag", tags}};
}

json link_json(uint64_t bytes, double seconds) {
  return {{"bytes", bytes}, {"gb_per_s", static_cast<double>(bytes) / seconds / 1e9}};
}

// Bytes over each link in one phase, and what the device waited for.
json phase_json(const DecoderStats& before, const DecoderStats& after, double seconds) {
  const auto more = [](uint64_t b, uint64_t a) { return a - b; };
  json links{
      {"host_to_gpu_weights",
       link_json(more(before.weights.host_bytes, after.weights.host_bytes), seconds)},
      {"disk_read_weights",
       link_json(more(before.weights.disk_bytes, after.weights.disk_bytes), seconds)},
      {"host_to_gpu_kv",
       link_json(more(before.swap.to_device_bytes, after.swap.to_device_bytes), seconds)},
      {"gpu_to_host_kv",
       link_json(more(before.swap.to_host_bytes, after.swap.to_host_bytes), seconds)},
      {"host_to_gpu_attention",
       link_json(more(before.host_attention.to_device_bytes, after.host_attention.to_device_bytes),
                 seconds)},
      {"gpu_to_host_attention",
       link_json(more(before.host_attention.to_host_bytes, after.host_attention.to_host_bytes),
                 seconds)}};
  const double cpu_s = after.host_attention.compute_s - before.host_attention.compute_s;
  const uint64_t cpu_bytes = more(before.host_attention.kv_bytes, after.host_attention.kv_bytes);
  json stalls = json::object();
  for (int cause = 0; cause < kStallCauseCount; ++cause) {
    stalls[stall_cause_name(static_cast<StallCause>(cause))] =
        after.stall_s[static_cast<size_t>(cause)];
  }
  return {{"seconds", seconds},
          {"links", links},
          {"stall_s", stalls},
          {"cpu_attention",
           {{"seconds", cpu_s},
            {"busy", cpu_s / seconds},
            {"kv_bytes", cpu_bytes},
            {"gb_per_s", cpu_s > 0 ? static_cast<double>(cpu_bytes) / cpu_s / 1e9 : 0}}},
          // One after the other (--no-overlap): the terms of a step.
          {"terms_s",
           {{"load_weights", after.weights.load_s - before.weights.load_s},
            {"load_kv", after.swap.load_s - before.swap.load_s},
            {"store_kv", after.swap.store_s - before.swap.store_s},
            {"cpu_attention", cpu_s}}}};
}

json report(const BenchOptions& options, Session& session, const WorkloadTiming& t) {
  const WorkloadSize& size = options.size;
  const double batch = size.batch, prompt = size.prompt_len, generated = size.gen_len;
  const int64_t weights = session.loaded->model.weight_bytes();
  // Deterministic mode looks at no table.
  const LoadedTuning* tuning =
      session.tuning && !options.session.deterministic ? &*session.tuning : nullptr;
  json tiers = json::object();
  tiers[session.device->host_visible() ? "host" : "gpu"] = usage_json(session.device->usage());
  if (session.own_host) tiers["host"] = usage_json(session.own_host->usage());
  const double decode_run_s =
      size.gen_len > 1 ? t.decode_s * t.steps / static_cast<double>(size.gen_len - 1) : 0;
  json out{{"model", options.session.model},
           {"device", session.device->info().hardware},
           {"threads", session.host().info().threads},
           {"weight_type", dtype_name(session.loaded->model.main_dtype())},
           {"weight_bytes", weights},
           {"kv_type", kv_type_name(session.kv_type)},
           {"compress_weights", options.session.compress_weights},
           {"tuning", tuning == nullptr ? json(nullptr)
                                        : json{{"file", tuning->path.string()},
                                               {"shapes", tuning->table.measured().size()}}},
           {"batch", size.batch},
           {"prompt_len", size.prompt_len},
           {"gen_len", size.gen_len},
           {"steps", t.steps},
           {"repeat", options.repeat},
           {"load_s", session.load_seconds},
           {"prefill_s", t.prefill_s},
           {"decode_s", t.decode_s},
           {"prefill_tokens_per_s", batch * prompt / t.prefill_s},
           {"generated_tokens_per_s", batch * generated / (t.prefill_s + t.decode_s)},
           {"total_tokens_per_s", batch * (prompt + generated) / (t.prefill_s + t.decode_s)},
           {"plan", json::parse(plan_to_json(session.plan))},
           {"predicted", nullptr},
           {"tiers", tiers},
           {"prefill", phase_json({}, t.prefill, t.prefill_s)}};
  if (t.steps > 0) {
    const double steps = generated - 1;
    out["decode_tokens_per_s"] = batch * steps / t.decode_s;
    out["decode_weight_gb_per_s"] = static_cast<double>(weights) * steps / t.decode_s / 1e9;
    out["decode"] = phase_json(t.prefill, t.decode, decode_run_s);
  } else {
    out["decode_tokens_per_s"] = nullptr;
  }
  return out;
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

void print_report(const json& out) {
  print_now(fmt::format("{} on {}, {} threads; batch {}, prompt {}, generated {}; median of {}\n",
                        out["model"].get<std::string>(), out["device"].get<std::string>(),
                        out["threads"].get<int>(), out["batch"].get<int>(),
                        out["prompt_len"].get<int>(), out["gen_len"].get<int>(),
                        out["repeat"].get<int>()));
  print_now(fmt::format("prefill   {:8.1f} tokens/s  ({:.3f} s)\n",
                        out["prefill_tokens_per_s"].get<double>(), out["prefill_s"].get<double>()));
  if (!out["decode_tokens_per_s"].is_null()) {
    print_now(fmt::format("decode    {:8.1f} tokens/s  ({:.3f} s, weights read at {:.1f} GB/s)\n",
                          out["decode_tokens_per_s"].get<double>(), out["decode_s"].get<double>(),
                          out["decode_weight_gb_per_s"].get<double>()));
  }
  print_now(fmt::format("generated {:8.1f} tokens/s over prefill and decode\n",
                        out["generated_tokens_per_s"].get<double>()));
  print_phase("prefill", out["prefill"]);
  if (out.contains("decode")) print_phase("decode", out["decode"]);
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

json bench_plan(const BenchOptions& options, size_t which) {
  Session session(options.session, which);
  const WorkloadSize& size = options.size;
  ModelSpec& spec = session.loaded->model.spec;
  // Rotated positions go on for ever; random weights do not mind.
  if (try_dummy_name(options.session.model) && spec.position == PositionKind::kRope) {
    spec.max_context = std::max(spec.max_context, int64_t{size.prompt_len} + size.gen_len);
  }
  SPW_CHECK(int64_t{size.prompt_len} + size.gen_len <= spec.max_context, kInvalidArgument,
            "--prompt-len {} and --gen-len {} exceed the model's context of {} tokens",
            size.prompt_len, size.gen_len, spec.max_context);
  Workload workload(size, session);
  std::vector<double> prefill, decode;
  WorkloadTiming last;
  {
    ProgressBar bar("bench");
    for (int i = 0; i < options.repeat; ++i) {
      const auto timing = workload.run();
      SPW_CHECK(timing.has_value(), kCancelled, "stopped after {} of {} runs", i, options.repeat);
      prefill.push_back(timing->prefill_s);
      decode.push_back(timing->decode_s);
      last = *timing;
      bar.update(static_cast<uint64_t>(i + 1), static_cast<uint64_t>(options.repeat),
                 fmt::format("run {} of {}", i + 1, options.repeat));
    }
  }
  last.prefill_s = median(prefill);
  last.decode_s = median(decode);
  json out = report(options, session, last);
  AttentionTraffic traffic = workload.attention_traffic();
  traffic.v_bytes /= static_cast<uint64_t>(options.repeat);  // runs are alike
  traffic.dense_v_bytes /= static_cast<uint64_t>(options.repeat);
  report_attention(out, session.attention_topk, traffic);
  return out;
}

int bench(BenchOptions options) {
  options.session.expected_tokens = int64_t{options.size.prompt_len} + options.size.gen_len;
  options.session.expected_sequences = options.size.batch;
  const size_t plans = std::max<size_t>(1, options.session.placement.plans.size());
  for (size_t i = 0; i < plans; ++i) {
    const json out = bench_plan(options, i);
    if (options.json) {
      print_json(out);
    } else {
      if (plans > 1) {
        print_now(fmt::format("{}plan {}\n", i == 0 ? "" : "\n",
                              printable_path(options.session.placement.plans[i])));
      }
      print_report(out);
    }
  }
  return 0;
}

}  // namespace

void add_bench_command(CLI::App& app) {
  auto* command =
      app.add_subcommand("bench", "measure prefill and decode speed on synthetic prompts");
  auto options = std::make_shared<BenchOptions>();
  options->session.add_to(*command, /*several_plans=*/true);
  const auto positive = CLI::Range(1, 1 << 24);
  command->add_option("--prompt-len", options->size.prompt_len, "tokens in each prompt")
      ->capture_default_str()
      ->check(positive);
  command
      ->add_option("--gen-len", options->size.gen_len,
                   "tokens generated for each; the first comes from prefill")
      ->capture_default_str()
      ->check(positive);
  command->add_option("--batch", options->size.batch, "sequences at once")
      ->capture_default_str()
      ->check(positive);
  command->add_option("--repeat", options->repeat, "runs; medians are reported")
      ->capture_default_str()
      ->check(positive);
  command
      ->add_option("--steps", options->size.steps,
                   "decode only so many steps of each run, and take the others to be like them")
      ->check(positive);
  command->add_flag("--no-overlap", options->session.placement.no_overlap,
                    "one thing after the other, each timed");
  command->add_flag("--json", options->json, "one JSON object a plan");
  command->footer(
      "generated tokens/s = generated / (prefill + decode time), the metric of the FlexGen paper.\n"
      "  spillway bench smollm2\n"
      "  spillway bench dummy:tinyllama-1.1b:q4_0 --batch 8\n"
      "  spillway bench dummy:opt-30b --gpu-memory 16GiB --host-memory 100GiB --batch 64");
  command->final_callback([options] { throw CLI::RuntimeError(bench(*options)); });
}

}  // namespace spillway
