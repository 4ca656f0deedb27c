// SPDX-License-Identifier: Apache-2.0
#include "serve/api/server_metrics.h"

#include <array>
#include <atomic>
#include <mutex>
#include <utility>

#include "serve/api/metric_registry.h"

namespace spillway {
namespace {

using prometheus::Counter;
using prometheus::Gauge;
using prometheus::Histogram;
using prometheus::Labels;

// Bucket bounds, from the time of a token of a resident model to that of a prompt whose weights
// stream from a disk.
const Histogram::BucketBoundaries kSeconds = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25,
                                              0.5,   1,      2.5,   5,    10,    25,   50,  100};
// Bucket bounds, from one word to the longest contexts of models.
const Histogram::BucketBoundaries kTokens = {1,    4,    16,   64,     128,    256,    512,    1024,
                                             2048, 4096, 8192, 16'384, 32'768, 65'536, 131'072};
// Names of the release before, kept for one more (docs/serving.md).
struct OldName {
  const char *old, *now;
};
constexpr OldName kOldNames[] = {
    {"spillway_kv_layers_turning", "spillway_kv_swapped_layers"},
    {"spillway_kv_turn_bytes_total", "spillway_kv_layer_swap_bytes_total"},
    {"spillway_kv_turn_ahead_total", "spillway_kv_layer_swap_ahead_total"},
    {"spillway_kv_turn_early_total", "spillway_kv_layer_swap_early_total"},
    {"spillway_kv_turn_waits_total", "spillway_kv_layer_swap_waits_total"},
    {"spillway_kv_turn_wait_seconds_total", "spillway_kv_layer_swap_wait_seconds_total"},
    {"spillway_kv_turn_changes_total", "spillway_kv_layer_swap_changes_total"},
    {"spillway_kv_turn_change_seconds_total", "spillway_kv_layer_swap_change_seconds_total"},
    {"spillway_outgrown_total", "spillway_predictions_exceeded_total"},
    {"spillway_outgrown_preemptions_total", "spillway_exceeded_preemptions_total"},
    {"spillway_foresight_seconds_total", "spillway_prediction_seconds_total"},
};
constexpr std::array kTiers = {"gpu", "host", "disk"}, kTiersWithoutGpu = {"host", "host", "disk"};

}  // namespace

struct ServerMetrics::Impl : MetricRegistry {
  struct Link {
    Counter& bytes;
    Gauge& rate;
    Gauge& ceiling;
  };
  Link link(const char* name) {
    const Labels labels = {{"link", name}};
    return {counter("spillway_link_bytes_total", "Bytes that moved between memories.", labels),
            gauge("spillway_link_bytes_per_second", "The same by time, lately.", labels),
            gauge("spillway_link_ceiling_bytes_per_second",
                  "What the machine's profile says the link can do; 0: unknown.", labels)};
  }

  std::atomic<bool> has_gpu = true;
  std::mutex store_mutex;  // threads that request metrics, and the engine's thread
  Gauge& waiting = gauge("spillway_requests_waiting", "Requests that have not begun.");
  Gauge& running = gauge("spillway_requests_running", "Requests that run.");
  Counter& prompt_tokens =
      counter("spillway_prompt_tokens_total", "Tokens of prompts that were computed.");
  Counter& reused_tokens = counter("spillway_reused_tokens_total",
                                   "Tokens of prompts that earlier requests had computed.");
  Counter& generated_tokens =
      counter("spillway_generated_tokens_total", "Tokens that were generated.");
  Counter& draft_proposed =
      counter("spillway_draft_proposed_tokens_total",
              "Tokens that were proposed and computed before they were drawn.");
  Counter& draft_accepted =
      counter("spillway_draft_accepted_tokens_total", "Of these, the tokens that were then drawn.");
  Counter& preemptions = counter("spillway_preemptions_total",
                                 "Sequences that lost their KV, which is computed again.");
  Counter& recomputed_tokens = counter("spillway_recomputed_tokens_total",
                                       "Tokens that were computed again after preemptions.");
  Counter& steps = counter("spillway_steps_total", "Steps of the engine.");
  Counter& failed_steps = counter("spillway_failed_steps_total",
                                  "Steps that a device or a disk failed; their requests got 503.");
  Gauge& kv_expansion =
      gauge("spillway_kv_expansion",
            "Blocks of KV on the GPU, as a multiple of those without layer swapping.");
  Gauge& swapped_layers = gauge("spillway_kv_swapped_layers", "Layers whose KV is swapped.");
  Counter& layer_swap_bytes =
      counter("spillway_kv_layer_swap_bytes_total", "Bytes copied for swapped layers.");
  Counter& layer_swaps_ahead =
      counter("spillway_kv_layer_swap_ahead_total",
              "Swapped layers that were requested during the step before theirs.");
  Counter& layer_swaps_early = counter("spillway_kv_layer_swap_early_total",
                                       "Of these, that were there before that step had ended.");
  Counter& layer_swap_waits = counter("spillway_kv_layer_swap_waits_total",
                                      "Times that a step waited for a swapped layer.");
  Counter& layer_swap_waited_s = counter("spillway_kv_layer_swap_wait_seconds_total",
                                         "Time that steps waited for swapped layers.");
  Counter& layer_swap_changes =
      counter("spillway_kv_layer_swap_changes_total", "Changes of the number of swapped layers.");
  Counter& layer_swap_changes_s = counter("spillway_kv_layer_swap_change_seconds_total",
                                          "Time without steps while memory was divided for that.");
  Histogram& first_token_s = histogram("spillway_time_to_first_token_seconds",
                                       "From a request to its first token.", kSeconds);
  Histogram& next_token_s = histogram("spillway_time_between_tokens_seconds",
                                      "Between two tokens of one answer.", kSeconds);
  Histogram& request_s =
      histogram("spillway_request_seconds", "From a request to the end of its answer.", kSeconds);
  Histogram& queue_s =
      histogram("spillway_queue_seconds",
                "From a request to its first step: reading it, and waiting.", kSeconds);
  Histogram& prompt_lengths =
      histogram("spillway_request_prompt_tokens", "Tokens of the prompts of a request.", kTokens);
  Histogram& answer_lengths =
      histogram("spillway_request_generated_tokens", "Tokens of an answer.", kTokens);
  Histogram& step_s = histogram("spillway_step_seconds", "Steps of the engine.", kSeconds);
  Histogram& decode_step_s =
      histogram("spillway_decode_step_seconds", "Those without tokens of prompts.", kSeconds);
  int64_t prompt_steps = 0;  // as of the last report
  Gauge& predicted_step_s =
      gauge("spillway_step_predicted_seconds",
            "A decoding step with all sequences running, as the plan estimates it; 0: unknown.");
  Gauge& stall_share =
      gauge("spillway_stall_share",
            "Of the time of steps, lately: waiting for weights, KV or activations.");
  Link to_gpu = link("to_gpu"), to_host = link("to_host"), disk_read = link("disk_read"),
       disk_write = link("disk_write");
  // Shows what was copied between a device and host memory, by use and direction.
  void show(const TransferTable& table) {
    for (size_t use = 0; use < table.size(); ++use) {
      for (size_t way = 0; way < table[use].size(); ++way) {
        const TransferStats& of = table[use][way];
        if (of.copies == 0) continue;
        const Labels labels = {{"use", transfer_use_name(static_cast<TransferUse>(use))},
                               {"direction", link_direction_name(static_cast<LinkDirection>(way))}};
        follow(
            counter("spillway_transfer_bytes_total",
                    "Bytes copied between GPU and host memory while models run, by use.", labels),
            static_cast<double>(of.bytes));
        follow(counter("spillway_transfer_busy_seconds_total",
                       "Time in which copies for this use were running.", labels),
               of.busy_s);
        follow(counter("spillway_transfer_held_seconds_total",
                       "Time in which copies for this use waited for more urgent ones.", labels),
               of.held_s);
      }
    }
  }
  // Blocks in the KV store (kv/kv_store.h), beyond the pools.
  struct StoreTier {
    Gauge& blocks;
    Gauge& bytes;
    Counter& evictions;
  };
  StoreTier store_tier(const char* tier) {
    const Labels labels = {{"tier", tier}};
    return {gauge("spillway_kv_store_blocks", "Blocks of KV beyond the pools, by memory.", labels),
            gauge("spillway_kv_store_bytes", "The same in bytes.", labels),
            counter("spillway_kv_store_evictions_total", "Blocks that made room for others there.",
                    labels)};
  }
  Counter& hits(const char* tier) {
    return counter("spillway_prefix_hit_tokens_total",
                   "Tokens that were not computed again, by where their KV was: in a pool, in host "
                   "memory or on disk.",
                   {{"tier", tier}});
  }
  Counter& moved(const char* way) {
    return counter("spillway_kv_store_moved_bytes_total", "Bytes that the KV store moved.",
                   {{"way", way}});
  }
  StoreTier store_host = store_tier("host"), store_disk = store_tier("disk");
  Counter &pool_hits = hits("pool"), &host_hits = hits("host"), &disk_hits = hits("disk");
  Counter &store_in = moved("to_device"), &store_out = moved("to_host"),
          &store_read = moved("disk_read"), &store_written = moved("disk_write");
  Counter& store_damaged =
      counter("spillway_kv_store_damaged_total",
              "Blocks on disk that were not as they were written: dropped, and computed again.");
  Counter& store_refused =
      counter("spillway_kv_store_refused_total", "Blocks that the KV store had no room for.");

  // Metrics of predicted answer lengths (engine/answer_lengths.h).
  Counter& predictions(const char* result) {
    return counter("spillway_length_predictions_total",
                   "Answers by their predicted length: in the right bucket, over- or "
                   "underpredicted.",
                   {{"result", result}});
  }
  Counter& taught(const char* what) {
    return counter("spillway_length_answers_total",
                   "Answers to learn from: learned, dropped (too many waited) or refused.",
                   {{"training", what}});
  }
  Counter& prediction_seconds(const char* part) {
    return counter("spillway_prediction_seconds_total",
                   "Time that went into predictions, on clients' threads; into scheduling, on the "
                   "engine's; into learning, on its own.",
                   {{"part", part}});
  }
  Counter &predicted_right = predictions("right"), &predicted_over = predictions("over"),
          &predicted_under = predictions("under");
  Counter& predicted_tokens = counter("spillway_length_predicted_tokens_total",
                                      "Tokens that the answers were predicted to have.");
  Counter& real_tokens =
      counter("spillway_length_real_tokens_total", "Tokens that these answers had.");
  Counter &learned = taught("learned"), &dropped = taught("dropped"), &refused = taught("refused");
  Gauge& to_learn =
      gauge("spillway_length_answers_waiting", "Answers that wait to be learned from.");
  Counter& predictions_exceeded =
      counter("spillway_predictions_exceeded_total",
              "Sequences that exceeded their predicted length, and were "
              "promised twice as much.");
  Counter& exceeded_preemptions =
      counter("spillway_exceeded_preemptions_total",
              "Sequences that were preempted after they had exceeded their predicted length.");
  Gauge& predicted_blocks =
      gauge("spillway_kv_predicted_blocks",
            "Blocks of KV that running requests and the next are predicted to need.");
  Counter &predicting_s = prediction_seconds("predicting"),
          &scheduling_s = prediction_seconds("scheduling"),
          &learning_s = prediction_seconds("learning");

  void show(const LengthCounts& lengths) {
    follow(predicted_right, static_cast<double>(lengths.right));
    follow(predicted_over, static_cast<double>(lengths.over));
    follow(predicted_under, static_cast<double>(lengths.under));
    follow(predicted_tokens, lengths.predicted_tokens);
    follow(real_tokens, lengths.real_tokens);
    follow(learned, static_cast<double>(lengths.learned));
    follow(dropped, static_cast<double>(lengths.dropped));
    follow(refused, static_cast<double>(lengths.refused));
    to_learn.Set(static_cast<double>(lengths.waiting));
    follow(predicting_s, lengths.predicting_s);
    follow(learning_s, lengths.learning_s);
  }

  void show(const KvStoreStats& store) {
    const auto show_tier = [](StoreTier& tier, const KvStoreStats::Tier& of) {
      tier.blocks.Set(static_cast<double>(of.blocks));
      tier.bytes.Set(static_cast<double>(of.bytes));
      follow(tier.evictions, static_cast<double>(of.evicted));
    };
    show_tier(store_host, store.host);
    show_tier(store_disk, store.disk);
    follow(store_in, static_cast<double>(store.to_device_bytes));
    follow(store_out, static_cast<double>(store.to_host_bytes));
    follow(store_read, static_cast<double>(store.disk_read_bytes));
    follow(store_written, static_cast<double>(store.disk_written_bytes));
    follow(store_damaged, static_cast<double>(store.damaged));
    follow(store_refused, static_cast<double>(store.refused));
  }

  prometheus::Family<Counter>& requests =
      counters("spillway_requests_total", "Requests by how they ended.");
  prometheus::Family<Gauge>& kv_blocks =
      gauges("spillway_kv_blocks", "Blocks of 16 tokens of KV, by memory.");
  prometheus::Family<Gauge>& info = gauges("spillway_info", "What is served, and how: always 1.");
};

ServerMetrics::ServerMetrics() : impl_(std::make_unique<Impl>()) {
  for (const auto& [old, now] : kOldNames) impl_->keep_old_name(old, now);
}
ServerMetrics::~ServerMetrics() = default;

void ServerMetrics::set_facts(const ServingFacts& facts) {
  impl_->info.Add({{"model", facts.model}, {"plan", facts.plan}}).Set(1);
  impl_->has_gpu = facts.has_gpu;
  impl_->predicted_step_s.Set(facts.predicted_step_s);
  impl_->to_gpu.ceiling.Set(facts.to_gpu_ceiling);
  impl_->to_host.ceiling.Set(facts.to_host_ceiling);
  impl_->disk_read.ceiling.Set(facts.disk_read_ceiling);
  impl_->disk_write.ceiling.Set(facts.disk_write_ceiling);
}

void ServerMetrics::step(const StepReport& report) {
  Impl& of = *impl_;
  of.waiting.Set(report.state.waiting);
  of.running.Set(report.state.running);
  follow(of.prompt_tokens, static_cast<double>(report.stats.prompt_tokens));
  follow(of.reused_tokens, static_cast<double>(report.stats.reused_tokens));
  const EngineStats& stats = report.stats;
  follow(of.host_hits, static_cast<double>(stats.reused_host_tokens));
  follow(of.disk_hits, static_cast<double>(stats.reused_disk_tokens));
  follow(of.pool_hits, static_cast<double>(stats.reused_tokens - stats.reused_host_tokens -
                                           stats.reused_disk_tokens));
  if (report.state.store) store(*report.state.store);
  for (const double waited_s : report.queue_waits_s) of.queue_s.Observe(waited_s);
  if (report.state.lengths) of.show(*report.state.lengths);
  of.predicted_blocks.Set(static_cast<double>(report.state.predicted_blocks));
  follow(of.predictions_exceeded, static_cast<double>(stats.predictions_exceeded));
  follow(of.exceeded_preemptions, static_cast<double>(stats.exceeded_preemptions));
  follow(of.recomputed_tokens, static_cast<double>(stats.recomputed_tokens));
  follow(of.scheduling_s, stats.scheduling_s);
  follow(of.generated_tokens, static_cast<double>(report.stats.generated_tokens));
  follow(of.draft_proposed, static_cast<double>(report.stats.draft_proposed));
  follow(of.draft_accepted, static_cast<double>(report.stats.draft_accepted));
  follow(of.preemptions, static_cast<double>(report.stats.preemptions));
  of.kv_expansion.Set(report.state.kv_expansion);
  of.swapped_layers.Set(report.state.swapped_layers);
  follow(of.layer_swap_bytes, static_cast<double>(report.stats.layer_swap_bytes));
  follow(of.layer_swaps_ahead, static_cast<double>(report.stats.layer_swaps_ahead));
  follow(of.layer_swaps_early, static_cast<double>(report.stats.layer_swaps_early));
  follow(of.layer_swap_waits, static_cast<double>(report.stats.layer_swap_waits));
  follow(of.layer_swap_waited_s, report.stats.layer_swap_waited_s);
  follow(of.layer_swap_changes, static_cast<double>(report.stats.layer_swap_changes));
  follow(of.layer_swap_changes_s, report.stats.layer_swap_changes_s);
  const bool computed = static_cast<double>(report.stats.steps) > of.steps.Value();
  follow(of.steps, static_cast<double>(report.stats.steps));
  if (computed) of.step_s.Observe(report.seconds);
  if (computed && stats.prompt_steps == of.prompt_steps) of.decode_step_s.Observe(report.seconds);
  of.prompt_steps = stats.prompt_steps;
  if (report.failed) of.failed_steps.Increment();
  for (size_t pool = 0; pool < report.state.kv.size() && pool < kTiers.size(); ++pool) {
    const EngineState::Pool& blocks = report.state.kv[pool];
    if (blocks.total == 0) continue;
    const char* const tier = of.has_gpu ? kTiers[pool] : kTiersWithoutGpu[pool];
    of.kv_blocks.Add({{"tier", tier}, {"state", "used"}}).Set(blocks.total - blocks.free);
    of.kv_blocks.Add({{"tier", tier}, {"state", "free"}}).Set(blocks.free);
  }
  const bool is_idle = report.state.running == 0 && report.state.waiting == 0;
  if (!report.traffic && !is_idle) return;
  const EngineTraffic moved = report.traffic.value_or(EngineTraffic{});
  const bool goes_on = moved.seconds > 0 && !is_idle;  // no later report would reset the rates
  const auto add = [&](Impl::Link& link, uint64_t bytes) {
    link.bytes.Increment(static_cast<double>(bytes));
    link.rate.Set(goes_on ? static_cast<double>(bytes) / moved.seconds : 0);
  };
  add(of.to_gpu, moved.to_gpu_bytes);
  add(of.to_host, moved.to_host_bytes);
  add(of.disk_read, moved.disk_read_bytes);
  add(of.disk_write, moved.disk_write_bytes);
  if (report.traffic) of.show(moved.transfers);
  of.stall_share.Set(goes_on ? moved.stalled_s / moved.seconds : 0);
}

void ServerMetrics::store(const KvStoreStats& stats) {
  const std::lock_guard lock(impl_->store_mutex);
  impl_->show(stats);
}

void ServerMetrics::prompt_length(size_t tokens) {
  impl_->prompt_lengths.Observe(static_cast<double>(tokens));
}
void ServerMetrics::answer_length(size_t tokens) {
  impl_->answer_lengths.Observe(static_cast<double>(tokens));
}

void ServerMetrics::first_token(double seconds) { impl_->first_token_s.Observe(seconds); }
void ServerMetrics::next_token(double seconds) { impl_->next_token_s.Observe(seconds); }

void ServerMetrics::ended(const char* finish, double seconds) {
  impl_->requests.Add({{"finish", finish}}).Increment();
  impl_->request_s.Observe(seconds);
}

void ServerMetrics::refused(int status) {
  impl_->requests.Add({{"finish", "refused"}, {"status", std::to_string(status)}}).Increment();
}

std::string ServerMetrics::text() const { return impl_->text(); }

}  // namespace spillway
