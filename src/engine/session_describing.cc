// SPDX-License-Identifier: Apache-2.0
// Part of Session: describes its plan, for people and for the comparison of results.
#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "base/byte_units.h"
#include "base/log.h"
#include "base/plain_numbers.h"
#include "base/printable.h"
#include "engine/model_catalog.h"
#include "engine/model_fingerprint.h"
#include "engine/session.h"
#include "plan/linear_shares.h"
#include "plan/weight_homes.h"

namespace spillway {

void Session::describe_run() {
  const Plan& plan = resolved_.plan;
  const RunLayout& layout = resolved_.layout();
  settings.host_attention = describe_host_attention(plan, *device, host());
  const bool comes_whole = layout.staging_blocks >= layout.sequence_blocks;
  const bool comes_partitioned = layout.staging_blocks >= layout.least_staging();
  if (layout.host_blocks > 0 && !comes_whole && !comes_partitioned)
    settings.host_attention += fmt::format(", and to more than {} tokens by the CPU alone",
                                           layout.staging_blocks * kKvBlockTokens);
  // Results depend on where a sequence's KV is cut into partitions.
  if (layout.partitioned && comes_partitioned) {
    settings.host_attention +=
        layout.fixed_blocks > 0
            ? fmt::format(", in partitions of {} tokens", layout.fixed_blocks * kKvBlockTokens)
            : fmt::format(", in partitions of up to {} tokens, {} of them on the device",
                          layout.staging_blocks * kKvBlockTokens,
                          layout.device_blocks * kKvBlockTokens);
  }
  settings.host_linear = describe_host_linear(plan, *device, host());
}

std::string Session::kv_salt() const {
  std::string salt = model_fingerprint(resolve_model(options_.model));
  for (const auto& [name, value] : settings.fields()) salt += fmt::format("\n{}: {}", name, value);
  return salt;
}

std::vector<ResultSettings> Session::settings_by_other_plans() const {
  std::vector<ResultSettings> all;
  if (device->host_visible()) return all;
  for (const TierShares& kv : {TierShares{1, 0, 0}, TierShares{0, 1, 0}}) {
    Plan other = plan();
    other.kv = kv;
    other.attention = same_for_every_sequence(other);
    ResultSettings& by_other = all.emplace_back(settings);
    by_other.host_attention = describe_host_attention(other, *device, *own_host);
  }
  return all;
}

void Session::report_drift(const HostLinear::Stats& stats) const {
  constexpr double kEnoughSeconds = 0.05, kFar = 1.3;
  if (stats.few_s < kEnoughSeconds) return;
  const double expected =
      expected_cpu_rate(machine().hardware, loaded->model, resolved_.homes, plan(),
                        static_cast<double>(std::min<int64_t>(
                            kFewTokens, std::max<int64_t>(1, resolved_.size.sequences))));
  const double measured = static_cast<double>(stats.few_bytes) / stats.few_s;
  if (expected <= 0 || (measured < expected * kFar && expected < measured * kFar)) return;
  log_warning(
      "the CPU multiplied its rows of linear layers at {:.3g} GB/s, and the plan had {:.3g}: "
      "another division would be faster, unless other programs were running; `spillway profile`, "
      "then `spillway profile {}` measures again",
      measured / 1e9, expected / 1e9, printable(options_.model));
}

std::string Session::describe_plan() const {
  const Plan& plan = resolved_.plan;
  const int64_t sequences = resolved_.size.sequences;
  const Prediction predicted = predict_run();
  const bool discrete = !device->host_visible();
  const auto shares = [&](const TierShares& of) {
    return discrete
               ? fmt::format("{:.0f}/{:.0f}/{:.0f}%", of.device * 100, of.host * 100, of.disk * 100)
               : fmt::format("{:.0f}/{:.0f}%", (of.device + of.host) * 100, of.disk * 100);
  };
  const std::string where =
      plan.all_on_device()
          ? fmt::format("everything on {}", device->info().name)
          : fmt::format("weights {}{} and KV {} {}{}",
                        shares(placed_shares(loaded->model, resolved_.homes, discrete)),
                        plan.activations.device < 1
                            ? fmt::format(", activations {}", shares(plan.activations))
                            : "",
                        shares(plan.kv),
                        discrete ? fmt::format("on {}/host/disk", device->info().name)
                                 : "in host memory/on disk",
                        plan.embeddings == Tier::kHost ? ", embeddings and head on the host" : "") +
                (plan.cpu_linear.empty()
                     ? ""
                     : fmt::format("; the CPU multiplies {:.0f}% of what is not there",
                                   plan.cpu_linear.front().share * 100));
  const Workload workload = expected_workload();
  const int64_t prompt = workload.prompt_tokens() / std::max<int64_t>(1, workload.requests());
  // The text names the prompts because, of many that come together, the last gets its first token
  // late.
  const std::string prompts =
      sequences == 1 ? fmt::format("a prompt of {} tokens", prompt)
                     : fmt::format("{} prompts of {} tokens at once", sequences, prompt);
  return fmt::format(
      "plan: {}; with {}: {} tokens/s and first tokens after {} predicted, bound by {} "
      "({}, {})",
      where, prompts, format_number(predicted.decode_tokens_per_s, 3),
      format_seconds(predicted.first_token_s), predicted.bottleneck_name(), machine().hardware.name,
      machine().how);
}

void Session::report_plan() const {
  // If everything is on the device, only the log has the plan.
  if (services_.notice && !plan().all_on_device()) {
    services_.notice(describe_plan());
  } else if (log_level() <= LogLevel::kInfo) {
    log_info("{}", describe_plan());
  }
}

void Session::report_refusals() {
  if (refused_.empty()) return;
  log_warning("{}; went on with the next plan, within {}{} of host memory",
              std::exchange(refused_, {}),
              device->host_visible() ? "" : format_bytes(budgets_.device) + " of GPU memory and ",
              format_bytes(budgets_.host));
  report_plan();
}

}  // namespace spillway
