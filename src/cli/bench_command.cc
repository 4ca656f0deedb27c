// SPDX-License-Identifier: Apache-2.0
// spillway bench: FlexGen's workload, synthetic prompts of one length, prefill and decode timed
// apart.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <numeric>

#include "base/byte_units.h"
#include "base/error.h"
#include "base/printable.h"
#include "cli/attention_report.h"
#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/json_output.h"
#include "cli/session.h"
#include "cli/terminal.h"
#include "engine/sampler.h"
#include "kv/block_allocator.h"

namespace spillway {
namespace {

using nlohmann::json;

struct BenchOptions {
  SessionOptions session;
  int prompt_len = 512;
  int gen_len = 32;
  int batch = 1;
  int repeat = 3;
  bool json = false;
};

struct Timing {
  double prefill_s = 0;
  double decode_s = 0;
};

// The same greedy loop that the engine runs, without its bookkeeping, so that the figures are those
// of the decoder.
class Workload {
 public:
  Workload(const BenchOptions& options, Session& session)
      : options_(options),
        runner_(session.make_runner(int64_t{options.prompt_len} + options.gen_len, options.batch)) {
    const auto blocks =
        static_cast<size_t>(blocks_for_tokens(int64_t{options.prompt_len} + options.gen_len));
    for (int b = 0; b < options.batch; ++b) {
      tables_.emplace_back(blocks);
      std::iota(tables_.back().begin(), tables_.back().end(),
                static_cast<int32_t>(static_cast<size_t>(b) * blocks));
      prompts_.emplace_back(static_cast<size_t>(options.prompt_len));
      for (size_t i = 0; i < prompts_.back().size(); ++i) {
        const double uniform = counter_uniform(static_cast<uint64_t>(b), i);
        prompts_.back()[i] = static_cast<TokenId>(
            uniform * static_cast<double>(session.loaded->model.spec.vocab_size));
      }
    }
  }

  // nullopt when interrupted.
  std::optional<Timing> run() {
    Timing timing;
    next_.assign(static_cast<size_t>(options_.batch), 0);
    const Stopwatch prefill_watch;
    if (!prefill()) return std::nullopt;
    timing.prefill_s = prefill_watch.seconds();
    const Stopwatch decode_watch;
    if (!decode()) return std::nullopt;
    timing.decode_s = decode_watch.seconds();
    return timing;
  }

  // Of all runs.
  const AttentionTraffic& attention_traffic() const { return runner_.decoder.attention_traffic(); }

 private:
  // Fills every step with as many prompt tokens as it takes, of one sequence after the other.
  bool prefill() {
    size_t b = 0;
    int start = 0;
    while (b < prompts_.size()) {
      if (interrupted()) return false;
      std::vector<StepSequence> step;
      std::vector<size_t> finished;
      for (int room = runner_.decoder.max_tokens(); room > 0 && b < prompts_.size();) {
        const int count = std::min(room, options_.prompt_len - start);
        const bool last = start + count == options_.prompt_len;
        const std::span<const TokenId> prompt(prompts_[b]);
        step.push_back({prompt.subspan(static_cast<size_t>(start), static_cast<size_t>(count)),
                        start, tables_[b], last ? 1 : 0});
        if (last) finished.push_back(b++);
        start = last ? 0 : start + count;
        room -= count;
      }
      const std::vector<TokenId> drawn = greedy(runner_.decoder.step(runner_.kv, step));
      for (size_t row = 0; row < finished.size(); ++row) next_[finished[row]] = drawn[row];
    }
    return true;
  }

  bool decode() {
    for (int i = 1; i < options_.gen_len; ++i) {
      if (interrupted()) return false;
      std::vector<StepSequence> step;
      for (size_t b = 0; b < next_.size(); ++b) {
        step.push_back({{&next_[b], 1}, options_.prompt_len + i - 1, tables_[b], 1});
      }
      next_ = greedy(runner_.decoder.step(runner_.kv, step));
    }
    return true;
  }

  std::vector<TokenId> greedy(const Activations& logits) {
    const auto rows = static_cast<size_t>(logits.rows);
    std::vector<TokenId> ids(rows);
    Device& device = runner_.decoder.device();
    if (!device.host_visible()) {
      device.ops().sample(logits, std::vector<SampleRow>(rows), ids);
      return ids;
    }
    for (size_t row = 0; row < rows; ++row) {
      const float* values = logits.f32(static_cast<int64_t>(row));
      ids[row] = static_cast<TokenId>(std::max_element(values, values + logits.cols) - values);
    }
    return ids;
  }

  const BenchOptions& options_;
  Runner runner_;
  std::vector<std::vector<int32_t>> tables_;
  std::vector<std::vector<TokenId>> prompts_;
  std::vector<TokenId> next_;  // the newest token of each sequence
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

json report(const BenchOptions& options, const Session& session, const Timing& t) {
  const double batch = options.batch, prompt = options.prompt_len, generated = options.gen_len;
  const int64_t weights = session.loaded->model.weight_bytes();
  const Device::Usage usage = session.device->usage();
  // Weights are mapped, or in an arena that the device counts.
  const uint64_t arena = usage.bytes[static_cast<size_t>(MemoryTag::kWeights)];
  const uint64_t others = usage.peak_bytes - std::min(usage.peak_bytes, arena);
  const uint64_t peak = static_cast<uint64_t>(weights) + others;
  const auto weight_bytes = static_cast<double>(weights);
  // Deterministic mode looks at no table.
  const LoadedTuning* tuning =
      session.tuning && !options.session.deterministic ? &*session.tuning : nullptr;
  json out{{"model", options.session.model},
           {"device", session.device->info().hardware},
           {"threads", session.device->info().threads},
           {"weight_type", dtype_name(session.loaded->model.main_dtype())},
           {"compress_weights", options.session.compress_weights},
           {"tuning", tuning == nullptr ? json(nullptr)
                                        : json{{"file", tuning->path.string()},
                                               {"shapes", tuning->table.measured().size()}}},
           {"batch", options.batch},
           {"prompt_len", options.prompt_len},
           {"gen_len", options.gen_len},
           {"repeat", options.repeat},
           {"load_s", session.load_seconds},
           {"prefill_s", t.prefill_s},
           {"decode_s", t.decode_s},
           {"prefill_tokens_per_s", batch * prompt / t.prefill_s},
           {"generated_tokens_per_s", batch * generated / (t.prefill_s + t.decode_s)},
           {"total_tokens_per_s", batch * (prompt + generated) / (t.prefill_s + t.decode_s)},
           {"plan", nullptr},
           {"predicted", nullptr},
           {"tiers",
            {{session.device->host_visible() ? "host" : "gpu",
              {{"peak_bytes", peak}, {"weight_bytes", weights}, {"other_peak_bytes", others}}}}},
           {"links", json::object()}};
  if (options.gen_len > 1) {
    const double steps = generated - 1;
    out["decode_tokens_per_s"] = batch * steps / t.decode_s;
    out["decode_weight_gb_per_s"] = weight_bytes * steps / t.decode_s / 1e9;
  } else {
    out["decode_tokens_per_s"] = nullptr;
  }
  return out;
}

int bench(const BenchOptions& options) {
  Session session(options.session);
  ModelSpec& spec = session.loaded->model.spec;
  // Rotated positions go on for ever; random weights do not mind.
  if (try_dummy_name(options.session.model) && spec.position == PositionKind::kRope) {
    spec.max_context = std::max(spec.max_context, int64_t{options.prompt_len} + options.gen_len);
  }
  const int64_t context = spec.max_context;
  SPW_CHECK(int64_t{options.prompt_len} + options.gen_len <= context, kInvalidArgument,
            "--prompt-len {} and --gen-len {} exceed the model's context of {} tokens",
            options.prompt_len, options.gen_len, context);
  Workload workload(options, session);
  std::vector<double> prefill, decode;
  {
    ProgressBar bar("bench");
    for (int i = 0; i < options.repeat; ++i) {
      const auto timing = workload.run();
      SPW_CHECK(timing.has_value(), kCancelled, "stopped after {} of {} runs", i, options.repeat);
      prefill.push_back(timing->prefill_s);
      decode.push_back(timing->decode_s);
      bar.update(static_cast<uint64_t>(i + 1), static_cast<uint64_t>(options.repeat),
                 fmt::format("run {} of {}", i + 1, options.repeat));
    }
  }
  json out = report(options, session, {median(prefill), median(decode)});
  AttentionTraffic traffic = workload.attention_traffic();
  traffic.v_bytes /= static_cast<uint64_t>(options.repeat);  // runs are alike
  traffic.dense_v_bytes /= static_cast<uint64_t>(options.repeat);
  report_attention(out, session.attention_topk, traffic);
  if (options.json) {
    print_json(out);
    return 0;
  }
  print_now(fmt::format("{} on {}, {} threads; batch {}, prompt {}, generated {}; median of {}\n",
                        options.session.model, out["device"].get<std::string>(),
                        out["threads"].get<int>(), options.batch, options.prompt_len,
                        options.gen_len, options.repeat));
  print_now(fmt::format("prefill   {:8.1f} tokens/s  ({:.3f} s)\n",
                        out["prefill_tokens_per_s"].get<double>(), median(prefill)));
  if (options.gen_len > 1) {
    print_now(fmt::format("decode    {:8.1f} tokens/s  ({:.3f} s, weights read at {:.1f} GB/s)\n",
                          out["decode_tokens_per_s"].get<double>(), median(decode),
                          out["decode_weight_gb_per_s"].get<double>()));
  }
  print_now(fmt::format("generated {:8.1f} tokens/s over prefill and decode\n",
                        out["generated_tokens_per_s"].get<double>()));
  print_now(fmt::format("memory    weights {} (mostly {}), KV cache and buffers at most {}\n",
                        format_bytes(static_cast<uint64_t>(session.loaded->model.weight_bytes())),
                        out["weight_type"].get<std::string>(),
                        format_bytes(out["tiers"].front()["other_peak_bytes"].get<uint64_t>())));
  if (session.attention_topk > 0) print_now(describe_attention(traffic));
  if (!out["tuning"].is_null()) {
    print_now(fmt::format("tuning    {} ({} shapes)\n",
                          printable_path(out["tuning"]["file"].get<std::string>()),
                          out["tuning"]["shapes"].get<size_t>()));
  }
  return 0;
}

}  // namespace

void add_bench_command(CLI::App& app) {
  auto* command =
      app.add_subcommand("bench", "measure prefill and decode speed on synthetic prompts");
  auto options = std::make_shared<BenchOptions>();
  options->session.add_to(*command);
  const auto positive = CLI::Range(1, 1 << 24);
  command->add_option("--prompt-len", options->prompt_len, "tokens in each prompt")
      ->capture_default_str()
      ->check(positive);
  command
      ->add_option("--gen-len", options->gen_len,
                   "tokens generated for each; the first comes from prefill")
      ->capture_default_str()
      ->check(positive);
  command->add_option("--batch", options->batch, "sequences at once")
      ->capture_default_str()
      ->check(positive);
  command->add_option("--repeat", options->repeat, "runs; medians are reported")
      ->capture_default_str()
      ->check(positive);
  command->add_flag("--json", options->json, "one JSON object");
  command->footer(
      "generated tokens/s = generated / (prefill + decode time), the metric of the FlexGen paper.\n"
      "  spillway bench smollm2\n"
      "  spillway bench dummy:tinyllama-1.1b:q4_0 --batch 8");
  command->final_callback([options] { throw CLI::RuntimeError(bench(*options)); });
}

}  // namespace spillway
