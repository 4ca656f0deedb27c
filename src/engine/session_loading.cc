// SPDX-License-Identifier: Apache-2.0
// Part of Session: loads the weights by its plan, and makes runners.
#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "base/byte_units.h"
#include "base/error.h"
#include "base/host_memory.h"
#include "base/log.h"
#include "base/stopwatch.h"
#include "engine/session.h"
#include "runtime/weight_mover.h"

namespace spillway {

void Session::load() {
  constexpr int kPlans = 4;
  for (int plans = 1;; ++plans) {
    try {
      load_as_planned();
      report_refusals();
      return;
    } catch (const Error& error) {
      if (plans == kPlans || !try_place_again(error)) throw;
    }
  }
}

void Session::load_as_planned() {
  const Stopwatch watch;
  const ModelSpec& spec = loaded->model.spec;
  const Plan& plan = resolved_.plan;
  const uint64_t weights_on_disk = resolved_.least_needs.disk.of(MemoryTag::kWeights);
  // For a plan that follows another, peaks are those of its run: the change itself takes more
  // memory.
  const auto forget_peaks = [&] {
    device->reset_peaks();
    host().reset_peaks();
  };
  const uint64_t disk_budget =
      budgets_.disk - (resolved_.least_needs.disk.total() - weights_on_disk);
  const WeightPlacement placement{.homes = resolved_.homes,
                                  .host = &host(),
                                  .queue = &disk_queue,
                                  .disk_dir = disk_dir,
                                  .disk_budget = disk_budget,
                                  .most_pinned = options_.placement.pinned_bytes()};
  if (loaded->weights.try_stay(loaded->model, placement)) {
    load_seconds = watch.seconds();
    forget_peaks();
    return;
  }
  KeptWeights kept = keep_weights(*device, loaded->model, std::exchange(loaded->weights, {}),
                                  placement, budgets_.host);
  {
    const auto progress = start_progress(services_.progress, "loading " + options_.model);
    WeightLoadOptions load = load_;
    load.progress = [&](uint64_t done, uint64_t total) {
      progress->update(done, total,
                       fmt::format("{} of {}", format_bytes(done), format_bytes(total)));
    };
    load_weights_of(*loaded, *device, load, placement, std::move(kept));
  }
  load_seconds = watch.seconds();
  if (loaded->weights.counts().kept > 0) forget_peaks();
  log_info("{}: {} of weights, mostly {}, in {:.2f} s; {} on {} with {} threads", spec.name,
           format_bytes(static_cast<uint64_t>(loaded->model.weight_bytes())),
           dtype_name(loaded->model.main_dtype()), load_seconds, device->info().name,
           device->info().hardware, device->info().threads);
  if (!plan.all_on_device()) {
    const auto shares = [](const TierShares& of) {
      return fmt::format("{:.1f}, {:.1f}, {:.1f}%", of.device * 100, of.host * 100, of.disk * 100);
    };
    log_info("on {}, in host memory and on disk: weights {}; KV {}; activations {}{}",
             device->info().name, shares(plan.weights), shares(plan.kv), shares(plan.activations),
             plan.embeddings == Tier::kHost ? "; embeddings and head in host memory" : "");
  }
}

Runner Session::make_runner(int64_t tokens, int64_t sequences, OnRefusal on_refusal) {
  const uint64_t disk_left = disk_bytes - std::min(disk_bytes, loaded->weights.disk_bytes());
  try {
    Runner runner = spillway::make_runner(*transfers, host(), disk_queue, *loaded,
                                          resolved_for(tokens, sequences), {disk_dir, disk_left},
                                          traits_within(budgets_).memory_bytes);
    runner.decoder.set_attention_topk(settings.attention_topk);
    if (!resolved_.expansion.adapts() && runner.kv.layers().sizes().most > 0)
      runner.decoder.change_swapped_layers(runner.kv, runner.kv.layers().sizes().most);
    return runner;
  } catch (const Error& error) {
    if (on_refusal == OnRefusal::kThrow || !try_place_again(error)) throw;
  }
  load();
  return make_runner(tokens, sequences, OnRefusal::kThrow);
}

Runner Session::make_runner_that_fits(int64_t wanted, int64_t sequences) {
  const ModelSpec& spec = loaded->model.spec;
  const KvShapes shapes = kv_shapes(spec.states, settings.kv_type);
  const int64_t one = blocks_for_tokens(wanted) * kKvBlockTokens;
  int64_t tokens = one * sequences;
  if (device->host_visible()) {
    const int64_t room = host_memory().available_bytes / 2 / shapes.block_bytes() * kKvBlockTokens;
    tokens = std::clamp(room / one * one, one, tokens);
  }
  for (bool tight = false;;) {
    try {
      Runner runner = make_runner(one, tokens / one, OnRefusal::kThrow);
      if (!tight || tokens == one) return runner;
      break;
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kOutOfMemory || tokens == one) throw;
      tokens = std::max(one, tokens / 2 / one * one);
      tight = true;
    }
  }
  // The KV cache fitted, but steps with many sequences take more memory later.
  return make_runner(one, std::max<int64_t>(1, tokens / one * 7 / 8));
}

}  // namespace spillway
