// SPDX-License-Identifier: Apache-2.0
#include "schedule/scheduler.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <numeric>
#include <unordered_set>
#include <utility>

#include "base/error.h"

namespace spillway {
namespace {

// Tokens of a sequence that is longer than any.
constexpr int64_t kEndless = int64_t{1} << 40;

// Tokens that it is likely to have in the end; 0 where nobody knows.
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
  if (!policies_.victim) policies_.victim = std::make_unique<YoungestGivesWay>();
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
      .outgrown = sequence.outgrown,
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
    if (turn.passes) rank.value = pass_later_turns(sequence);
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
  extend_outgrown(sequence);
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
  sequence.farthest = sequence.known;  // with drafts that were right
  const std::optional<int64_t> end = sequence.blocks.try_cut_end(sequence.known);
  if (!end) {
    preempt(sequence);
    return false;
  }
  sequence.computed = static_cast<int32_t>(*end);
  // What is computed again behind a checkpoint is a part of the answer as it was.
  sequence.fresh = std::max(sequence.fresh, sequence.known - sequence.computed);
  for (int group = 0; group < allocator_.groups(); ++group) {
    // It is cut again before the copy was made, and before the block that was cut into.
    const auto whole = static_cast<int32_t>(sequence.blocks.blocks(group).size()) * kKvBlockTokens;
    auto& cut_into = sequence.cut_into[index_of(group)];
    if (cut_into && sequence.computed <= whole)
      allocator_.release(*std::exchange(cut_into, std::nullopt));
  }
  const auto cut_into = sequence.blocks.cut_back(sequence.computed);
  bool can_copy = true;  // that is made on the device
  for (size_t group = 0; group < cut_into.size(); ++group) {
    if (cut_into[group]) sequence.cut_into[group] = cut_into[group];
    can_copy = can_copy && (!cut_into[group] || cut_into[group]->tier == Tier::kDevice);
  }
  if (can_copy) return true;
  release_cut_into(sequence);  // the block's tokens are computed again
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
  if (was_expected && !ending->admitted) --answers_;  // cancelled: it tells nothing
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

// The client's requests keep the places that they have among those of others: what comes between
// two of them puts the later ones back by what it costs, and nobody else.
double Scheduler::pass_later_turns(const Sequence& arriving) {
  std::vector<Sequence*> same;
  std::optional<double> before, after;  // ranks: where the last of those ends that go before it
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

// What was never computed is charged to nobody: its client's later requests move up.
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

// Gives its blocks back and will be computed again, before those that have not begun.
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

// S3, section 3: who was predicted too short is promised twice as much from then on. With blocks
// that are taken as they are needed, it goes on where it is as long as there are free ones.
void Scheduler::extend_outgrown(Sequence& sequence) {
  const int64_t prompt = sequence.given.tokens, most = sequence.given.expected;
  while (sequence.reserved > 0 && sequence.known >= sequence.reserved &&
         (most == 0 || sequence.reserved < most)) {
    sequence.reserved = prompt + 2 * (sequence.reserved - prompt);
    if (most > 0) sequence.reserved = std::min(sequence.reserved, most);
    ++sequence.outgrown;
    ++extensions_;
  }
}

void Scheduler::preempt_all() {
  while (!running_.empty()) preempt(running_.back());
}

std::vector<RequestId> Scheduler::choose_to_give_way(Tier pool, int64_t blocks, int group) const {
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
        holding.begin() + static_cast<std::ptrdiff_t>(policies_.victim->choose(views));
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
    Sequence& giving_way = at(id);
    outgrown_preemptions_ += giving_way.outgrown > 0 ? 1 : 0;
    preempt(giving_way);
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

// Makes a plan out of what there is, keeping in numbers what the plan would change.
class Scheduler::Planner {
 public:
  explicit Planner(const Scheduler& of)
      : of_(of),
        rooms_(of.allocator_.rooms()),
        tokens_(of.limits_.max_step_tokens),
        prompt_tokens_(tokens_),
        logit_rows_(of.limits_.max_logit_rows > 0 ? of.limits_.max_logit_rows
                                                  : of.limits_.max_step_tokens) {}

  StepPlan make() {
    const bool prompts_first = of_.policies_.admission->prompts_first();
    if (!prompts_first) schedule_running(/*in_prefill=*/false);
    if (!plan_.chunks.empty() && of_.limits_.max_prompt_tokens > 0)
      prompt_tokens_ = std::min(tokens_, of_.limits_.max_prompt_tokens);
    schedule_running(/*in_prefill=*/true);
    // Nobody begins in a step that preempted: its room is spoken for. Nor where one that runs waits
    // for room: there would always be somebody who needs less.
    if (plan_.preempted.empty() && plan_.exhausted.empty() && !is_short_of_room_) admit();
    if (prompts_first && plan_.chunks.empty() && plan_.exhausted.empty())
      schedule_running(/*in_prefill=*/false);
    add_drafts();
    return std::move(plan_);
  }

 private:
  PoolRoom& room(Tier pool, int group) { return rooms_[index_of(group)][index_of(pool)]; }
  PoolRoom& room_of(BlockId block) { return room(block.tier, block.group); }
  // Whether what a sequence of so many tokens holds of each group at once fits, beside the blocks
  // that it begins with, into what is free in a pool.
  bool has_room(Tier pool, int64_t tokens, const GroupBlocks& begun) const {
    return fits(tokens, begun, [&](size_t group) { return rooms_[group][index_of(pool)].free; });
  }
  // The same for one that may be in several pools.
  bool has_room_in_all(int64_t tokens, const GroupBlocks& begun) const {
    return fits(tokens, begun, [&](size_t group) {
      int64_t all = 0;
      for (const PoolRoom& pool : rooms_[group]) all += pool.free;
      return all;
    });
  }
  template <class FreeOf>
  bool fits(int64_t tokens, const GroupBlocks& begun, const FreeOf& free_of) const {
    for (int group = 0; group < of_.allocator_.groups(); ++group) {
      const auto have = static_cast<int64_t>(begun[index_of(group)].size());
      const int64_t rest = std::min(of_.allocator_.rule(group).entries(tokens) - have,
                                    of_.allocator_.most_blocks(tokens, group));
      if (rest > free_of(index_of(group))) return false;
    }
    return true;
  }
  int running() const { return of_.running() - static_cast<int>(plan_.preempted.size()); }

  // Tokens of a sequence that this step has room for.
  int32_t fitting(const Sequence& sequence, int32_t missing, bool in_prefill) const {
    int32_t tokens = std::min(missing, tokens_);
    if (in_prefill) tokens = std::min(tokens, prompt_tokens_);
    if (sequence.given.scored) return std::min(tokens, std::max(1, logit_rows_));
    // All but the one whose logits are wanted.
    return tokens == missing && logit_rows_ <= 0 ? tokens - 1 : tokens;
  }

  void schedule(const Sequence& sequence, int32_t start, int32_t tokens, bool in_prefill,
                const Reservation& reservation) {
    const bool last = start + tokens == sequence.known;
    plan_.chunks.push_back(
        {.id = sequence.given.id,
         .start = start,
         .tokens = tokens,
         .last = last,
         .generates = start >= sequence.given.tokens && sequence.known - start <= sequence.fresh,
         .reservation = reservation});
    scheduled_.insert(sequence.given.id);
    tokens_ -= tokens;
    if (in_prefill) prompt_tokens_ -= tokens;
    logit_rows_ -= sequence.given.scored ? tokens : last ? 1 : 0;
  }

  void take(const Sequence& sequence, const Reservation& reservation) {
    for (int group = 0; group < of_.allocator_.groups(); ++group) {
      PoolRoom& of = room(reservation.pool, group);
      of.free -= reservation.blocks[index_of(group)];
      of.promised += reservation.promised[index_of(group)] - sequence.blocks.promised(group);
      for (const Tier pool : of_.allocator_.pools())
        room(pool, group).free -= reservation.beyond[index_of(group)][index_of(pool)];
    }
  }

  // What a victim gives back: blocks that nobody else holds.
  void give_back(const Sequence& victim) {
    for (int group = 0; group < of_.allocator_.groups(); ++group) {
      for (const BlockId block : victim.blocks.held(group)) {
        if (++given_back_[block] == of_.allocator_.holders(block)) ++room_of(block).free;
      }
      if (const auto pool = victim.blocks.pool())
        room(*pool, group).promised -= victim.blocks.promised(group);
    }
    plan_.preempted.push_back(victim.given.id);
    preempted_.insert(victim.given.id);
  }

  // Who of a pool (or, of one that spans pools, behind it) gives way: null where that is somebody
  // of this step, and who asks waits.
  const Sequence* try_victim(Tier pool, bool spans) const {
    std::vector<SequenceView> views;
    std::vector<const Sequence*> sequences;
    for (const Sequence& sequence : of_.running_) {
      const bool there = sequence.blocks.uses(pool) || (spans && sequence.blocks.pool() > pool);
      if (!there || preempted_.contains(sequence.given.id)) continue;
      views.push_back(of_.view_of(sequence));
      sequences.push_back(&sequence);
    }
    const Sequence* const chosen = sequences[of_.policies_.victim->choose(views)];
    return scheduled_.contains(chosen->given.id) ? nullptr : chosen;
  }

  // Makes room, where others can give way. Nothing: not in this step.
  std::optional<Reservation> try_reserve(const Sequence& sequence, int32_t tokens) {
    while (true) {
      const auto reservation = sequence.blocks.try_plan(sequence.computed + tokens, rooms_);
      if (reservation) {
        take(sequence, *reservation);
        return reservation;
      }
      const bool spans = sequence.blocks.spans(0);
      const Tier pool = sequence.blocks.pool().value();
      const BlockAllocator& allocator = of_.allocator_;
      if (sequence.known > (spans ? allocator.longest() : allocator.longest_in(pool))) {
        // No pool has room for it, or another, or all together: there it begins again.
        if (sequence.known > allocator.longest()) {
          plan_.exhausted.push_back(sequence.given.id);
        } else {
          give_back(sequence);
        }
        return std::nullopt;
      }
      const Sequence* const victim = try_victim(pool, spans);
      if (victim == nullptr) {  // it waits for those already in this step
        is_short_of_room_ = true;
        return std::nullopt;
      }
      give_back(*victim);
      if (victim == &sequence) return std::nullopt;
    }
  }

  void schedule_running(bool in_prefill) {
    for (const Sequence& sequence : of_.running_) {
      if (tokens_ <= 0) return;
      const int32_t missing = sequence.known - sequence.computed;
      if (missing == 0 || is_in_prefill(sequence) != in_prefill ||
          preempted_.contains(sequence.given.id))
        continue;
      const int32_t tokens = fitting(sequence, missing, in_prefill);
      if (tokens <= 0 || (sequence.given.scored && logit_rows_ <= 0 && !plan_.chunks.empty()))
        continue;
      if (const auto reservation = try_reserve(sequence, tokens))
        schedule(sequence, sequence.computed, tokens, in_prefill, *reservation);
      if (!plan_.exhausted.empty()) return;
    }
  }

  // Adds a block to each group that needs one for so many drafts behind `end` tokens, where there
  // is room in all that do. Returns for how many tokens there are blocks then.
  int32_t reserve_for_drafts(const Sequence& sequence, Reservation& reservation, int32_t end,
                             int32_t drafts) {
    static_assert(kMostCutBack <= kKvBlockTokens, "drafts take one more block at most");
    bool grows = reservation.pool == of_.allocator_.pools().front() && !sequence.blocks.spans(0);
    int64_t least = std::numeric_limits<int32_t>::max() / kKvBlockTokens;
    PerGroup<bool> needs_one = {};
    for (int group = 0; group < of_.allocator_.groups(); ++group) {
      if (!of_.allocator_.rule(group).is_paged()) continue;
      const auto& beyond = reservation.beyond[index_of(group)];
      const int64_t blocks = static_cast<int64_t>(sequence.blocks.blocks(group).size()) +
                             reservation.blocks[index_of(group)] +
                             std::accumulate(beyond.begin(), beyond.end(), int64_t{0});
      least = std::min(least, blocks);
      needs_one[index_of(group)] = blocks_for_tokens(end + drafts) > blocks;
      grows = grows && (!needs_one[index_of(group)] || room(reservation.pool, group).free > 0);
    }
    if (!grows || blocks_for_tokens(end + drafts) <= least)
      return static_cast<int32_t>(least * kKvBlockTokens);
    for (int group = 0; group < of_.allocator_.groups(); ++group) {
      if (!needs_one[index_of(group)]) continue;
      PoolRoom& of = room(reservation.pool, group);
      ++reservation.blocks[index_of(group)];
      --of.free;
      if (reservation.promised[index_of(group)] == 0) continue;
      --reservation.promised[index_of(group)];
      --of.promised;
    }
    return static_cast<int32_t>((least + 1) * kKvBlockTokens);
  }

  // Whether there is a block on the device for a copy of each of its recurrent states, which must
  // be there, too.
  bool can_keep_states(const Sequence& sequence) const {
    for (int group = 0; group < of_.allocator_.groups(); ++group) {
      if (of_.allocator_.rule(group).is_paged()) continue;
      const std::vector<BlockId>& states = sequence.blocks.blocks(group);
      if (states.empty() || states.front().tier != Tier::kDevice) return false;
      const int64_t free = rooms_[index_of(group)][index_of(Tier::kDevice)].free;
      if (states.size() == 1 && free < 1) return false;
    }
    return true;
  }

  void take_checkpoint(const Sequence& sequence, ScheduledChunk& chunk) {
    chunk.reservation.checkpoint = chunk.start;
    for (int group = 0; group < of_.allocator_.groups(); ++group)
      if (!of_.allocator_.rule(group).is_paged() && sequence.blocks.blocks(group).size() == 1)
        --room(Tier::kDevice, group).free;
  }

  // They take what nothing else of this step wants: tokens, rows of logits and free blocks.
  void add_drafts() {
    for (ScheduledChunk& chunk : plan_.chunks) {
      const Sequence& sequence = *of_.by_id_.at(chunk.id);
      if (!chunk.last || !chunk.generates || sequence.proposed == 0) continue;
      const int32_t end = chunk.start + chunk.tokens;
      int32_t drafts = std::min({sequence.proposed, tokens_, logit_rows_});
      // When some are cut off, no more than kMostCutBack tokens are to be computed again.
      const bool has_states = of_.allocator_.has_states();
      if (has_states) drafts = std::min(drafts, kMostCutBack - chunk.tokens);
      if (drafts <= 0 || (has_states && !can_keep_states(sequence))) continue;
      drafts = std::min(drafts, reserve_for_drafts(sequence, chunk.reservation, end, drafts) - end);
      if (drafts <= 0) continue;
      if (has_states) take_checkpoint(sequence, chunk);
      chunk.drafted = drafts;
      chunk.tokens += drafts;
      tokens_ -= drafts;
      logit_rows_ -= drafts;
    }
  }

  // What it begins with, if it is there, and in a pool that has room for the rest of it.
  FoundPrefix find_prefix(const Sequence& sequence) {
    if (of_.prefixes_ == nullptr || sequence.given.scored) return {};
    FoundPrefix found = of_.prefixes_->find(sequence.given.id, beginning_);
    if (found.tokens == 0 || found.is_coming || of_.allocator_.pools().size() == 1) return found;
    if (sequence.blocks.spans(sequence.known + 1)) return found;  // it goes on elsewhere
    const int64_t end = sequence.reserved > 0 ? sequence.reserved : sequence.given.expected;
    const std::vector<BlockId> held = newly_held(found);
    for (const BlockId block : held) --room_of(block).free;
    const bool has =
        has_room(pool_of(found), std::max<int64_t>(sequence.known + 1, end), found.blocks);
    for (const BlockId block : held) ++room_of(block).free;
    return has ? found : FoundPrefix{};
  }

  // Where the first of what was found is, or comes to.
  static Tier pool_of(const FoundPrefix& found) {
    for (const std::vector<BlockId>& blocks : found.blocks)
      if (!blocks.empty()) return blocks.front().tier;
    for (const std::optional<BlockId>& partly : found.partly)
      if (partly) return partly->tier;
    return Tier::kDevice;
  }

  // Blocks that are kept for nobody are counted as free, until somebody begins with them.
  std::vector<BlockId> newly_held(const FoundPrefix& found) const {
    std::vector<BlockId> blocks;
    const auto look_at = [&](BlockId block) {
      if (of_.allocator_.holders(block) == 0 && !held_.contains(block)) blocks.push_back(block);
    };
    for (size_t group = 0; group < found.blocks.size(); ++group) {
      for (const BlockId block : found.blocks[group])
        if (!block.is_released()) look_at(block);
      if (found.partly[group]) look_at(*found.partly[group]);
    }
    return blocks;
  }

  // Newcomers, if there is room for all their tokens and one more.
  void admit() {
    const Admission& admission = *of_.policies_.admission;
    const int begun = of_.running() + of_.preempted_waiting_;
    const int most = admission.most_newcomers({.running = begun, .mean_answer = of_.mean_answer()});
    constexpr int kMostPassed = 64;  // who waits for what is coming; looking at all takes time
    constexpr int kMostPassingBegun = 8;
    int newcomers = 0, passed = 0;
    std::optional<Forecasts> forecasts;  // made when somebody could begin
    std::vector<RequestId> without_room;
    int may_pass = std::numeric_limits<int>::max();  // all of these, in this step too
    for (const Place& place : of_.queue_) {
      if (tokens_ <= 0 ||
          running() + static_cast<int>(plan_.beginning.size()) >= admission.max_sequences())
        return;
      if (place.is_new && newcomers >= most) return;
      const Sequence& next = *of_.by_id_.at(place.id);
      if (!forecasts) forecasts = make_forecasts();
      if (!try_add(*forecasts, next) && !is_alone()) {
        plan_.is_full = true;
        without_room.push_back(place.id);
        // Somebody reads an answer that has begun.
        const int most_passing = place.is_new
                                     ? admission.most_passing()
                                     : std::min(kMostPassingBegun, admission.most_passing());
        may_pass = std::min(may_pass, most_passing - next.passed);
        if (may_pass <= 0 || static_cast<int>(without_room.size()) > kMostPassed) return;
        continue;
      }
      FoundPrefix found = find_prefix(next);
      if (found.is_coming && passed < kMostPassed) {
        ++passed;
        if (std::ranges::any_of(found.fetch, [](const auto& keys) { return !keys.empty(); }))
          plan_.fetches.push_back({place.id, std::move(found.fetch)});
        continue;
      }
      if (!try_begin(next, std::move(found))) return;
      newcomers += place.is_new ? 1 : 0;
      plan_.passed_over.insert(plan_.passed_over.end(), without_room.begin(), without_room.end());
      if (!without_room.empty() && --may_pass == 0) return;
    }
  }

  bool is_alone() const { return of_.running_.empty() && plan_.beginning.empty(); }

  // Of each paged group that has one.
  struct Forecast {
    int group = 0;
    std::unique_ptr<RoomForecast> of_group;
  };
  using Forecasts = std::vector<Forecast>;

  // What runs on holds its blocks, and those that are free are for all. Blocks that several hold
  // count for each of them, here and in what they are expected to need.
  Forecasts make_forecasts() const {
    Forecasts forecasts;
    for (int group = 0; group < of_.allocator_.groups(); ++group) {
      if (!of_.allocator_.rule(group).is_paged()) continue;
      std::vector<SequenceView> views;
      int64_t blocks = of_.allocator_.free_of(group);
      for (const Sequence& sequence : of_.running_) {
        views.push_back(of_.view_of(sequence, group));
        blocks += views.back().blocks;
      }
      if (auto forecast = of_.policies_.admission->forecast(views, blocks))
        forecasts.push_back({group, std::move(forecast)});
    }
    return forecasts;
  }

  // In all of them, or in none.
  bool try_add(Forecasts& forecasts, const Sequence& next) const {
    for (auto forecast = forecasts.begin(); forecast != forecasts.end(); ++forecast) {
      if (forecast->of_group->try_add(of_.view_of(next, forecast->group))) continue;
      for (auto added = forecasts.begin(); added != forecast; ++added) added->of_group->take_back();
      return false;
    }
    return true;
  }

  bool try_begin(const Sequence& next, FoundPrefix found) {
    const std::vector<BlockId> held = newly_held(found);
    bool is_spoken_for = false;  // what it would begin with is others' room by now
    for (const BlockId block : held) is_spoken_for |= --room_of(block).free < 0;
    const auto give_up = [&] {
      for (const BlockId block : held) ++room_of(block).free;
      return false;
    };
    const auto begin_without_prefix = [&] {
      give_up();
      return try_begin(next, {});
    };
    if (is_spoken_for) return begin_without_prefix();
    const auto is_in_room = [&](Tier pool) { return has_room(pool, next.known + 1, found.blocks); };
    const bool fits = next.blocks.spans(next.known + 1)
                          ? has_room_in_all(next.known + 1, found.blocks)
                          : std::ranges::any_of(of_.allocator_.pools(), is_in_room);
    if (!is_alone() && !fits) {
      plan_.is_full = true;  // it is what there was room for
      return give_up();
    }
    const int32_t tokens = fitting(next, next.known - found.tokens, /*in_prefill=*/true);
    if (tokens <= 0 || (next.given.scored && logit_rows_ <= 0)) return give_up();
    const auto reservation = next.blocks.try_plan(found.tokens + tokens, rooms_, found.blocks);
    // What is kept for others would do where it is alone; and a copy stays where it is.
    if (found.tokens > 0 && (!reservation || is_elsewhere(found, *reservation)))
      return begin_without_prefix();
    if (!reservation) {
      if (is_alone()) plan_.exhausted.push_back(next.given.id);  // nobody will ever make room
      plan_.is_full = true;
      return false;
    }
    held_.insert(held.begin(), held.end());
    begin(next, std::move(found), tokens, *reservation);
    return true;
  }

  // Whether what is to be copied or loaded does not come to where the sequence takes its blocks.
  static bool is_elsewhere(const FoundPrefix& found, const Reservation& reservation) {
    for (size_t group = 0; group < found.blocks.size(); ++group) {
      const std::optional<BlockId>& partly = found.partly[group];
      if (partly && partly->tier != reservation.pool) return true;
      const auto loads = static_cast<int64_t>(found.loads[group].size());
      if (loads > 0 && (reservation.pool != Tier::kDevice || reservation.blocks[group] < loads))
        return true;
    }
    return false;
  }

  void begin(const Sequence& next, FoundPrefix found, int32_t tokens,
             const Reservation& reservation) {
    take(next, reservation);
    const int32_t reused = found.tokens;
    plan_.beginning.push_back({plan_.chunks.size(), reservation.pool, std::move(found)});
    beginning_.push_back(next.given.id);
    schedule(next, reused, tokens, /*in_prefill=*/true, reservation);
    plan_.chunks.back().reused = reused;
  }

  const Scheduler& of_;
  PoolRooms rooms_;
  int32_t tokens_, prompt_tokens_, logit_rows_;  // what the step still has room for
  bool is_short_of_room_ = false;                // one that runs waits
  StepPlan plan_;
  std::vector<RequestId> beginning_;
  std::unordered_set<RequestId> scheduled_, preempted_;
  std::unordered_map<BlockId, int32_t> given_back_;  // by how many of its holders
  std::unordered_set<BlockId> held_;                 // by those that begin
};

bool Scheduler::spans(RequestId id) const {
  const Sequence& of = *by_id_.at(id);
  return of.blocks.spans(of.known + 1);
}

void Scheduler::release_behind() {
  for (Sequence& sequence : running_) sequence.blocks.release_behind(sequence.computed);
}

StepPlan Scheduler::prepare() const { return Planner(*this).make(); }

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
  // One that comes back is as old as it was: the oldest of all is never chosen to give way, and so
  // is sure to end.
  const auto younger = std::ranges::find_if(
      running_, [&](const Sequence& other) { return other.begun > sequence.begun; });
  running_.splice(younger, waiting_, by_id_.at(sequence.given.id));
}

void Scheduler::apply(StepPlan& plan) {
  const int begun_before = running() + preempted_waiting_;
  for (const RequestId id : plan.passed_over) ++at(id).passed;
  preempt(plan.preempted);
  // Before anybody takes a block: what they begin with is kept for nobody until now.
  int newcomers = 0;
  for (const StepPlan::Beginning& beginning : plan.beginning) {
    Sequence& sequence = at(plan.chunks[beginning.chunk].id);
    newcomers += sequence.admitted ? 0 : 1;
    begin(sequence, beginning);
  }
  for (ScheduledChunk& chunk : plan.chunks) {
    Sequence& sequence = at(chunk.id);
    SPW_ASSERT(sequence.computed == chunk.start);
    // Exactly this: what victims left behind is more than those before them had counted on.
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
      block.reset();  // release_copies() releases it
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
  policies_.admission->began(newcomers, plan.is_full, begun_before);
}

void Scheduler::release_copies(const StepPlan& plan) {
  for (const StepPlan::Copy& copy : plan.copies) allocator_.release(copy.from);
}

}  // namespace spillway
