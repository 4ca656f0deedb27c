// SPDX-License-Identifier: Apache-2.0
#include "schedule/scheduler.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/error.h"

namespace spillway {
namespace {

// The tokens of a sequence that is longer than any real one.
constexpr int64_t kEndless = int64_t{1} << 40;

// The tokens that a sequence is likely to have in the end; 0: unknown.
int64_t likely_end(const NewSequence& given) {
  if (given.predicted <= 0) return given.expected;
  const int64_t predicted = std::max<int64_t>(given.predicted, given.tokens + 1);
  return given.expected > 0 ? std::min(given.expected, predicted) : predicted;
}

}  // namespace

Scheduler::Scheduler(BlockAllocator& allocator, const SchedulerLimits& limits,
                     const PrefixSource* prefixes, SchedulingPolicies policies)
    : allocator_(allocator), limits_(limits), prefixes_(prefixes), policies_(std::move(policies)) {
  if (!policies_.order) policies_.order = std::make_unique<FirstComeFirstServed>();
  if (!policies_.admission)
    policies_.admission = std::make_unique<PlannedAdmission>(limits.admission);
  if (!policies_.preemption) policies_.preemption = std::make_unique<PreemptYoungest>();
  SPW_CHECK(limits.max_step_tokens > 0 && policies_.admission->max_sequences() > 0,
            kInvalidArgument, "a step of {} tokens and {} sequences does nothing",
            limits.max_step_tokens, policies_.admission->max_sequences());
}

double Scheduler::mean_answer() const {
  return answers_ > 0 ? static_cast<double>(answer_tokens_) / static_cast<double>(answers_) : 0;
}

SequenceView Scheduler::view_of(const Sequence& sequence, int group) const {
  const bool is_full = allocator_.rule(group).kind == StateKind::kFull;
  return {
      .id = sequence.given.id,
      .prompt = sequence.given.tokens,
      .known = sequence.known,
      .expected = sequence.given.expected,
      .priority = sequence.given.priority,
      .client = sequence.given.client,
      .mean_answer = mean_answer(),
      .reserved = sequence.reserved,
      .exceeded = sequence.exceeded,
      .blocks = static_cast<int64_t>(sequence.blocks.held(group).size()),
      .most_blocks = is_full ? SequenceView::kAnyBlocks : allocator_.most_blocks(kEndless, group),
      .pool = sequence.blocks.pool()};
}

Scheduler::Sequence& Scheduler::at(RequestId id) {
  const auto found = by_id_.find(id);
  SPW_ASSERT(found != by_id_.end());
  return *found->second;
}

void Scheduler::add(const NewSequence& given) {
  SPW_ASSERT(given.tokens > 0 && !by_id_.contains(given.id));
  const int64_t end = likely_end(given);
  Sequence& sequence = waiting_.emplace_back(
      Sequence{.given = given,
               .known = given.tokens,
               .reserved = given.predicted > 0 ? end : 0,
               .blocks = BlockTable(allocator_, end > 0 ? end : given.tokens + 1)});
  QueueOrder::Rank rank = policies_.order->rank(view_of(sequence));
  sequence.cost = rank.cost;
  if (rank.cost > 0) {
    const UserTurns::Turn turn =
        turns_.arrive({given.client, given.priority}, given.user, rank.cost);
    sequence.turn = turn.value;
    if (turn.may_overtake) rank.value = overtake_later(sequence);
  }
  if (end > given.tokens) {
    ++answers_;
    answer_tokens_ += end - given.tokens;
  }
  sequence.place = {.is_new = true, .rank = rank.value, .arrival = arrivals_++, .id = given.id};
  queue_.insert(sequence.place);
  by_id_.emplace(given.id, std::prev(waiting_.end()));
}

void Scheduler::append(RequestId id, int32_t tokens) {
  Sequence& sequence = at(id);
  SPW_ASSERT(tokens > 0);
  sequence.known += tokens;
  sequence.fresh += tokens;
  sequence.drafted = 0;
  extend_exceeded(sequence);
}

void Scheduler::propose(RequestId id, int32_t drafts) {
  SPW_ASSERT(drafts >= 0 && drafts <= kMostCutBack);
  at(id).proposed = drafts;
}

bool Scheduler::cut_back(RequestId id, int32_t tokens) {
  Sequence& sequence = at(id);
  SPW_ASSERT(tokens >= 0 && tokens <= kMostCutBack);
  sequence.known -= tokens;
  SPW_ASSERT(sequence.known >= sequence.given.tokens);
  sequence.fresh = std::max(0, sequence.fresh - tokens);
  sequence.proposed = sequence.drafted = 0;
  if (sequence.computed <= sequence.known) return true;
  sequence.farthest = sequence.known;  // accepted drafts count as computed
  const std::optional<int64_t> end = sequence.blocks.try_cut_end(sequence.known);
  if (!end) {
    preempt(sequence);
    return false;
  }
  sequence.computed = static_cast<int32_t>(*end);
  // Tokens that are computed again after a checkpoint count as a part of the answer, as before.
  sequence.fresh = std::max(sequence.fresh, sequence.known - sequence.computed);
  for (int group = 0; group < allocator_.groups(); ++group) {
    // A block that an earlier cut left to be copied is not needed if this cut ends before it.
    const auto whole = static_cast<int32_t>(sequence.blocks.blocks(group).size()) * kKvBlockTokens;
    auto& cut_into = sequence.cut_into[index_of(group)];
    if (cut_into && sequence.computed <= whole)
      allocator_.release(*std::exchange(cut_into, std::nullopt));
  }
  const auto cut_into = sequence.blocks.cut_back(sequence.computed);
  bool can_copy = true;  // copies are only made on the device
  for (size_t group = 0; group < cut_into.size(); ++group) {
    if (cut_into[group]) sequence.cut_into[group] = cut_into[group];
    can_copy = can_copy && (!cut_into[group] || cut_into[group]->tier == Tier::kDevice);
  }
  if (can_copy) return true;
  release_cut_into(sequence);  // the partly used block's tokens are computed again
  sequence.computed = sequence.computed / kKvBlockTokens * kKvBlockTokens;
  if (sequence.blocks.try_cut_end(sequence.computed) == sequence.computed) return true;
  preempt(sequence);
  return false;
}

void Scheduler::release_cut_into(Sequence& sequence) {
  for (std::optional<BlockId>& block : sequence.cut_into)
    if (block) allocator_.release(*std::exchange(block, std::nullopt));
}

void Scheduler::remove(RequestId id, std::optional<int64_t> answer) {
  const auto found = by_id_.find(id);
  if (found == by_id_.end()) return;
  const Sequences::iterator ending = found->second;
  const int32_t prompt = ending->given.tokens;
  const int64_t end = likely_end(ending->given);
  const bool was_expected = end > prompt;
  if (was_expected) answer_tokens_ -= end - prompt;
  // Cancelled before it began: it says nothing about lengths.
  if (was_expected && !ending->admitted) --answers_;
  if (ending->admitted) {
    if (!was_expected) ++answers_;
    answer_tokens_ += answer.value_or(ending->known + 1 - prompt);
  }
  if (!ending->runs) {
    queue_.erase(ending->place);
    if (ending->admitted) --preempted_waiting_;
    if (!ending->admitted) leave_queue(*ending);
  }
  release_cut_into(*ending);
  (ending->runs ? running_ : waiting_).erase(ending);
  by_id_.erase(found);
}

bool Scheduler::share_a_queue(const Sequence& one, const Sequence& other) {
  return &one != &other && !one.admitted && !other.admitted &&
         one.given.client == other.given.client && one.given.priority == other.given.priority;
}

// A client's requests keep their places among those of other clients: a request that comes between
// two of them delays the later ones by its cost, and no other client's.
double Scheduler::overtake_later(const Sequence& arriving) {
  std::vector<Sequence*> same;
  // Ranks: the largest of those that go first, and where the next one starts.
  std::optional<double> before, after;
  for (Sequence& other : waiting_) {
    if (!share_a_queue(arriving, other)) continue;
    same.push_back(&other);
    const double rank = other.place.rank;
    if (other.turn <= arriving.turn) {
      before = std::max(before.value_or(rank), rank);
    } else {
      after = std::min(after.value_or(rank - other.cost), rank - other.cost);
    }
  }
  const double start = before.value_or(after.value_or(0));
  for (Sequence* const other : same) {
    if (other->place.rank <= start) continue;
    queue_.erase(other->place);
    other->place.rank += arriving.cost;
    queue_.insert(other->place);
  }
  return start + arriving.cost;
}

// A request that was never computed costs nothing: its client's later requests move up.
void Scheduler::leave_queue(const Sequence& leaving) {
  policies_.order->left(view_of(leaving), leaving.cost);
  if (leaving.cost <= 0) return;
  turns_.left({leaving.given.client, leaving.given.priority}, leaving.given.user, leaving.cost);
  for (Sequence& other : waiting_) {
    if (!share_a_queue(leaving, other) || other.place <= leaving.place) continue;
    queue_.erase(other.place);
    other.place.rank -= leaving.cost;
    queue_.insert(other.place);
    if (other.given.user == leaving.given.user) other.turn -= leaving.cost;
  }
}

// Releases the sequence's blocks; it will be computed again, before requests that have not begun.
void Scheduler::preempt(Sequence& sequence) {
  SPW_ASSERT(sequence.runs);
  sequence.known -= std::exchange(sequence.drafted, 0);
  sequence.proposed = 0;
  release_cut_into(sequence);
  sequence.blocks.clear();
  sequence.blocks.expect(std::max<int64_t>(sequence.known + 1, sequence.reserved));
  sequence.computed = 0;
  sequence.runs = false;
  sequence.place = {.is_new = false, .rank = 0, .arrival = sequence.begun, .id = sequence.given.id};
  queue_.insert(sequence.place);
  waiting_.splice(waiting_.end(), running_, by_id_.at(sequence.given.id));
  ++preempted_waiting_;
  ++preemptions_;
}

// A sequence that exceeds its prediction is promised twice as much from then on (S3, section 3). If
// blocks are taken as they are needed, it continues in place as long as there are free ones.
void Scheduler::extend_exceeded(Sequence& sequence) {
  const int64_t prompt = sequence.given.tokens, most = sequence.given.expected;
  while (sequence.reserved > 0 && sequence.known >= sequence.reserved &&
         (most == 0 || sequence.reserved < most)) {
    sequence.reserved = prompt + 2 * (sequence.reserved - prompt);
    if (most > 0) sequence.reserved = std::min(sequence.reserved, most);
    ++sequence.exceeded;
    ++extensions_;
  }
}

void Scheduler::preempt_all() {
  while (!running_.empty()) preempt(running_.back());
}

std::vector<RequestId> Scheduler::choose_preempted(Tier pool, int64_t blocks, int group) const {
  std::vector<const Sequence*> holding;
  std::unordered_map<BlockId, int> holders;
  for (const Sequence& sequence : running_) {
    if (sequence.blocks.uses(pool)) holding.push_back(&sequence);
    for (const BlockId block : sequence.blocks.held(group))
      if (block.tier == pool) ++holders[block];
  }
  std::vector<RequestId> chosen;
  while (static_cast<int64_t>(holders.size()) > blocks) {
    std::vector<SequenceView> views;
    for (const Sequence* const sequence : holding) views.push_back(view_of(*sequence));
    const auto victim =
        holding.begin() + static_cast<std::ptrdiff_t>(policies_.preemption->choose(views));
    for (const BlockId block : (*victim)->blocks.held(group)) {
      const auto held = holders.find(block);
      if (held != holders.end() && --held->second == 0) holders.erase(held);
    }
    chosen.push_back((*victim)->given.id);
    holding.erase(victim);
  }
  return chosen;
}

void Scheduler::preempt(std::span<const RequestId> ids) {
  for (const RequestId id : ids) {
    Sequence& preempted = at(id);
    exceeded_preemptions_ += preempted.exceeded > 0 ? 1 : 0;
    preempt(preempted);
  }
}

void Scheduler::rename(std::span<const BlockAllocator::Move> moves) {
  if (moves.empty()) return;
  for (Sequence& sequence : running_) {
    sequence.blocks.rename(moves);
    for (std::optional<BlockId>& block : sequence.cut_into)
      if (block) rename_block(*block, moves);
  }
}

std::vector<SequenceView> Scheduler::at_work_and_next(int most) const {
  std::vector<SequenceView> views;
  for (const Sequence& sequence : running_) views.push_back(view_of(sequence));
  for (const Place& place : queue_) {
    if (static_cast<int>(views.size()) >= most) break;
    views.push_back(view_of(*by_id_.at(place.id)));
  }
  return views;
}

std::vector<RequestId> Scheduler::begun() const {
  std::vector<RequestId> ids;
  for (const Sequence& sequence : running_) ids.push_back(sequence.given.id);
  for (const Place& place : queue_) {
    if (place.is_new) break;
    ids.push_back(place.id);
  }
  return ids;
}

bool Scheduler::is_in_prefill(const Sequence& sequence) {
  return sequence.known - sequence.computed > sequence.fresh ||
         sequence.computed < sequence.given.tokens;
}

bool Scheduler::spans(RequestId id) const {
  const Sequence& of = *by_id_.at(id);
  return of.blocks.spans(of.known + 1);
}

void Scheduler::release_behind() {
  for (Sequence& sequence : running_) sequence.blocks.release_behind(sequence.computed);
}

void Scheduler::begin(Sequence& sequence, const StepPlan::Beginning& beginning) {
  for (const std::vector<BlockId>& blocks : beginning.found.blocks)
    for (const BlockId block : blocks)
      if (!block.is_released()) allocator_.hold(block);
  for (const std::optional<BlockId>& partly : beginning.found.partly)
    if (partly) allocator_.hold(*partly);  // until it is copied
  sequence.blocks.begin_in(beginning.pool, beginning.found.blocks);
  sequence.computed = beginning.found.tokens;
  queue_.erase(sequence.place);
  if (sequence.admitted) {
    --preempted_waiting_;
  } else {
    policies_.order->began(sequence.place.rank);
    if (sequence.cost > 0)
      turns_.began({sequence.given.client, sequence.given.priority}, sequence.turn);
    sequence.begun = beginnings_++;
  }
  sequence.admitted = sequence.runs = true;
  sequence.passed = 0;
  // A sequence that comes back keeps its age: the oldest one is never chosen for preemption, and so
  // is sure to end.
  const auto younger = std::ranges::find_if(
      running_, [&](const Sequence& other) { return other.begun > sequence.begun; });
  running_.splice(younger, waiting_, by_id_.at(sequence.given.id));
}

void Scheduler::apply(StepPlan& plan) {
  const int begun_before = running() + preempted_waiting_;
  for (const RequestId id : plan.passed_over) ++at(id).passed;
  preempt(plan.preempted);
  // Beginnings come before any block is taken, because the blocks that they share may have no
  // holder until now.
  int admissions = 0;
  for (const StepPlan::Beginning& beginning : plan.beginning) {
    Sequence& sequence = at(plan.chunks[beginning.chunk].id);
    admissions += sequence.admitted ? 0 : 1;
    begin(sequence, beginning);
  }
  for (ScheduledChunk& chunk : plan.chunks) {
    Sequence& sequence = at(chunk.id);
    SPW_ASSERT(sequence.computed == chunk.start);
    // Takes exactly the plan: preempted sequences free more blocks than sequences before
    // them counted on.
    sequence.blocks.take(chunk.reservation);
    const int32_t known = chunk.tokens - chunk.drafted;
    sequence.computed += chunk.tokens;
    recomputed_tokens_ += std::clamp(sequence.farthest - chunk.start, 0, known);
    sequence.farthest = std::max(sequence.farthest, chunk.start + known);
    sequence.known += chunk.drafted;
    sequence.drafted = chunk.drafted;
    sequence.proposed = 0;
    if (chunk.last) sequence.fresh = 0;
    chunk.table = &sequence.blocks;
    chunk.block_table = &sequence.blocks.blocks();
    const auto cut = static_cast<size_t>(chunk.start / kKvBlockTokens);
    for (int group = 0; group < allocator_.groups(); ++group) {
      auto& block = sequence.cut_into[index_of(group)];
      if (block) plan.copies.push_back({*block, sequence.blocks.blocks(group)[cut]});
      block.reset();  // release_copies() releases the block
      if (!chunk.reservation.checkpoint || allocator_.rule(group).is_paged()) continue;
      const std::vector<BlockId>& states = sequence.blocks.blocks(group);
      allocator_.hold(states[0]);
      plan.copies.push_back({states[0], states[1]});
    }
  }
  for (size_t i = 0; i < plan.beginning.size(); ++i) {
    const FoundPrefix& found = plan.beginning[i].found;
    const BlockTable& table = *plan.chunks[plan.beginning[i].chunk].table;
    for (int group = 0; group < allocator_.groups(); ++group) {
      const std::vector<BlockId>& blocks = table.blocks(group);
      size_t next = found.blocks[index_of(group)].size();
      for (const BlockKey& key : found.loads[index_of(group)])
        plan.loads.push_back({key, blocks[next++].in<Tier::kDevice>(), i});
      if (const auto& partly = found.partly[index_of(group)])
        plan.copies.push_back({*partly, blocks[next]});
    }
  }
  policies_.admission->began(admissions, plan.is_full, begun_before);
}

void Scheduler::release_copies(const StepPlan& plan) {
  for (const StepPlan::Copy& copy : plan.copies) allocator_.release(copy.from);
}

}  // namespace spillway
