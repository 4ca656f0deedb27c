// SPDX-License-Identifier: Apache-2.0
#include "engine/model_run.h"

#include "engine/draft_estimate.h"
#include "engine/result_settings.h"
#include "schedule/admission.h"

namespace spillway {
namespace {

AdmissionPolicy admission_of(const RunOrder& order, const Plan& plan, int64_t sequences) {
  Plan admitting = plan;
  switch (order.admission) {
    case RunOrder::Admission::kAny:
      return {};
    case RunOrder::Admission::kByPlan:
      break;
    case RunOrder::Admission::kContinuous:
      if (plan.schedule != ScheduleKind::kDiagonal) admitting.schedule = ScheduleKind::kContinuous;
      break;
    case RunOrder::Admission::kWholeBlocks:
      if (plan.schedule != ScheduleKind::kRow) admitting.schedule = ScheduleKind::kZigzag;
      break;
  }
  return admission_policy(admitting, static_cast<int>(sequences), order.mean_answer);
}

EngineOptions options_of(const RunOrder& order, const Plan& plan, int64_t tokens,
                         int64_t sequences) {
  return {.admission = admission_of(order, plan, sequences),
          .scheduling = order.scheduling,
          .lengths = order.lengths,
          .max_sequence_tokens = tokens,
          .drafts = order.drafts};
}

// Returns the number of sequences that the runner has room for; a batch block of the plan's
// schedule may have fewer than `sequences`.
int64_t planned_sequences(const RunOrder& order, const AdmissionPolicy& admission,
                          int64_t sequences) {
  const bool in_blocks = order.admission == RunOrder::Admission::kByPlan ||
                         order.admission == RunOrder::Admission::kWholeBlocks;
  return in_blocks ? admission.max_sequences : sequences;
}

Runner runner_of(Session& session, bool fits_fewer, int64_t tokens, int64_t sequences) {
  return fits_fewer ? session.make_runner_that_fits(tokens, sequences)
                    : session.make_runner(tokens, sequences);
}

}  // namespace

ModelRun::ModelRun(Session& session, const RunOrder& order, int64_t tokens, int64_t sequences)
    : options(options_of(order, session.plan(), tokens, sequences)),
      runner(runner_of(session, order.fits_fewer, tokens,
                       planned_sequences(order, options.admission, sequences))),
      session_(session),
      tokenizer_(order.with_text ? session.tokenizer() : nullptr) {
  const int64_t planned = planned_sequences(order, options.admission, sequences);
  const bool is_limited = order.admission != RunOrder::Admission::kAny;
  if (order.fits_fewer && is_limited) share_memory(order, planned);
  const int most = is_limited ? options.admission.max_sequences : static_cast<int>(sequences);
  if (order.usual) {
    estimate = estimate_serving(session, most, order.usual->prompt, order.usual->generated,
                                runner.decoder.max_tokens());
    options.max_prompt_tokens = estimate->prompt_tokens;
  }
  if (order.reuse != RunOrder::Reuse::kNever) make_stores(order, tokens, planned);
  options.draft_costs = estimate_draft_costs(session, order.drafts, most);
}

void ModelRun::share_memory(const RunOrder& order, int64_t planned) {
  const ResultSettings& settings = session_.settings;
  const bool may_lose_blocks = may_preempt(settings.attention_topk, settings.deterministic);
  // The requests of a batch block begin together, and none of them may wait for the others.
  const bool is_continuous = order.admission == RunOrder::Admission::kContinuous ||
                             session_.plan().schedule == ScheduleKind::kContinuous;
  const bool waits = order.may_wait && is_continuous && may_lose_blocks;
  const MaxConcurrent& most = session_.resolved().max_concurrent;
  options.admission = admission_of(
      order, session_.plan(),
      with_rows(runner.decoder, planned, waits ? most.over_commit : most.full_reservation));
  options.adapts_swapped_layers = may_lose_blocks && session_.resolved().expansion.adapts();
}

void ModelRun::make_stores(const RunOrder& order, int64_t tokens, int64_t planned) {
  const bool keeps_preempted = order.keeps_preempted && options.admission.max_sequences > planned;
  stores_ = session_.make_kv_stores(
      runner.kv, tokens, keeps_preempted ? Session::KvStoreHost::kWhereDiscrete : order.store);
  const bool shares = order.reuse == RunOrder::Reuse::kAlways || !stores_.empty();
  options.reuse_prefixes = shares || keeps_preempted;
  if (shares) options.kv_salt = session_.kv_salt();
  options.store = stores_;
}

Engine& ModelRun::engine() {
  if (!engine_) engine_.emplace(runner.decoder, runner.kv, tokenizer_, options);
  return *engine_;
}

}  // namespace spillway
