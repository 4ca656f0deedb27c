// SPDX-License-Identifier: Apache-2.0
// The part of Scheduler that plans a step.
#include <algorithm>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "schedule/scheduler.h"

namespace spillway {

// Makes the plan of a step, counting what the plan would change without changing it.
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
    // A step that preempts admits nothing, because the room is needed; nor does one in which
    // a running sequence waits for room, because otherwise requests that need less would
    // always come first.
    if (plan_.preempted.empty() && plan_.exhausted.empty() && !is_short_of_room_) admit();
    if (prompts_first && plan_.chunks.empty() && plan_.exhausted.empty())
      schedule_running(/*in_prefill=*/false);
    add_drafts();
    return std::move(plan_);
  }

 private:
  PoolRoom& room(Tier pool, int group) { return rooms_[index_of(group)][index_of(pool)]; }
  PoolRoom& room_of(BlockId block) { return room(block.tier, block.group); }
  // Whether a pool has room for all that a sequence of this many tokens holds at the same time in
  // each group, apart from the blocks that it begins with.
  bool has_room(Tier pool, int64_t tokens, const GroupBlocks& begun) const {
    return fits(tokens, begun, [&](size_t group) { return rooms_[group][index_of(pool)].free; });
  }
  // The same for a sequence that may be in several pools.
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

  // The number of a sequence's missing tokens for which this step has room.
  int32_t fitting(const Sequence& sequence, int32_t missing, bool in_prefill) const {
    int32_t tokens = std::min(missing, tokens_);
    if (in_prefill) tokens = std::min(tokens, prompt_tokens_);
    if (sequence.given.scored) return std::min(tokens, std::max(1, logit_rows_));
    // No rows of logits are left, so the last token must wait.
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

  // Counts the blocks that a preempted sequence releases: those that no other sequence holds.
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

  // Chooses the sequence to preempt in a pool (or, for a sequence that spans pools, in a
  // later one as well). Null if it is already scheduled in this step; then the sequence that
  // needs room waits.
  const Sequence* try_victim(Tier pool, bool spans) const {
    std::vector<SequenceView> views;
    std::vector<const Sequence*> sequences;
    for (const Sequence& sequence : of_.running_) {
      const bool there = sequence.blocks.uses(pool) || (spans && sequence.blocks.pool() > pool);
      if (!there || preempted_.contains(sequence.given.id)) continue;
      views.push_back(of_.view_of(sequence));
      sequences.push_back(&sequence);
    }
    const Sequence* const chosen = sequences[of_.policies_.preemption->choose(views)];
    return scheduled_.contains(chosen->given.id) ? nullptr : chosen;
  }

  // Reserves blocks for `tokens` more tokens, preempting others if necessary; nullopt: not
  // in this step.
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
        // This pool cannot hold the sequence: it ends if all pools together cannot either, else it
        // is preempted and begins again where it fits.
        if (sequence.known > allocator.longest()) {
          plan_.exhausted.push_back(sequence.given.id);
        } else {
          give_back(sequence);
        }
        return std::nullopt;
      }
      const Sequence* const victim = try_victim(pool, spans);
      if (victim == nullptr) {  // it waits for sequences already in this step
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

  // Adds a block to each group that needs one for this many drafts after `end` tokens, if there is
  // room in all of those groups. Returns for how many tokens there are then blocks.
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

  // Whether the sequence's recurrent states are on the device, with a free block for a copy
  // of each.
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

  // Adds drafts with what nothing else in this step uses: tokens, rows of logits and free blocks.
  void add_drafts() {
    for (ScheduledChunk& chunk : plan_.chunks) {
      const Sequence& sequence = *of_.by_id_.at(chunk.id);
      if (!chunk.last || !chunk.generates || sequence.proposed == 0) continue;
      const int32_t end = chunk.start + chunk.tokens;
      int32_t drafts = std::min({sequence.proposed, tokens_, logit_rows_});
      // If some are cut off, no more than kMostCutBack tokens shall be computed again.
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

  // The prefix that the sequence begins with, if one is found in a pool with room for the
  // rest of it.
  FoundPrefix find_prefix(const Sequence& sequence) {
    if (of_.prefixes_ == nullptr || sequence.given.scored) return {};
    FoundPrefix found = of_.prefixes_->find(sequence.given.id, beginning_);
    if (found.tokens == 0 || found.is_in_flight || of_.allocator_.pools().size() == 1) return found;
    if (sequence.blocks.spans(sequence.known + 1)) return found;  // it may continue in other pools
    const int64_t end = sequence.reserved > 0 ? sequence.reserved : sequence.given.expected;
    const std::vector<BlockId> held = newly_held(found);
    for (const BlockId block : held) --room_of(block).free;
    const bool has =
        has_room(pool_of(found), std::max<int64_t>(sequence.known + 1, end), found.blocks);
    for (const BlockId block : held) ++room_of(block).free;
    return has ? found : FoundPrefix{};
  }

  // The memory of the first block that was found, or to which it is loaded.
  static Tier pool_of(const FoundPrefix& found) {
    for (const std::vector<BlockId>& blocks : found.blocks)
      if (!blocks.empty()) return blocks.front().tier;
    for (const std::optional<BlockId>& partly : found.partly)
      if (partly) return partly->tier;
    return Tier::kDevice;
  }

  // The blocks of a prefix that have no holders: they count as free until a sequence begins with
  // them.
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

  // Admits requests for which there is room for all their known tokens and one more.
  void admit() {
    const Admission& admission = *of_.policies_.admission;
    const int begun = of_.running() + of_.preempted_waiting_;
    const int most = admission.max_admissions({.running = begun, .mean_answer = of_.mean_answer()});
    // Requests that wait for in-flight prefixes; looking at all takes time.
    constexpr int kMostPassed = 64;
    constexpr int kMostPassingBegun = 8;
    int admissions = 0, passed = 0;
    std::optional<Forecasts> forecasts;  // made when a request could begin
    std::vector<RequestId> without_room;
    // The least that any of `without_room` allows, also in this step.
    int may_pass = std::numeric_limits<int>::max();
    for (const Place& place : of_.queue_) {
      if (tokens_ <= 0 ||
          running() + static_cast<int>(plan_.beginning.size()) >= admission.max_sequences())
        return;
      if (place.is_new && admissions >= most) return;
      const Sequence& next = *of_.by_id_.at(place.id);
      if (!forecasts) forecasts = make_forecasts();
      if (!try_add(*forecasts, next) && !is_alone()) {
        plan_.is_full = true;
        without_room.push_back(place.id);
        // An answer that has begun has a reader, so fewer may overtake it.
        const int max_overtaking = place.is_new
                                       ? admission.max_overtaking()
                                       : std::min(kMostPassingBegun, admission.max_overtaking());
        may_pass = std::min(may_pass, max_overtaking - next.passed);
        if (may_pass <= 0 || static_cast<int>(without_room.size()) > kMostPassed) return;
        continue;
      }
      FoundPrefix found = find_prefix(next);
      if (found.is_in_flight && passed < kMostPassed) {
        ++passed;
        if (std::ranges::any_of(found.fetch, [](const auto& keys) { return !keys.empty(); }))
          plan_.fetches.push_back({place.id, std::move(found.fetch)});
        continue;
      }
      if (!try_begin(next, std::move(found))) return;
      admissions += place.is_new ? 1 : 0;
      plan_.passed_over.insert(plan_.passed_over.end(), without_room.begin(), without_room.end());
      if (!without_room.empty() && --may_pass == 0) return;
    }
  }

  bool is_alone() const { return of_.running_.empty() && plan_.beginning.empty(); }

  // The forecast of a paged group, if the policy makes one.
  struct Forecast {
    int group = 0;
    std::unique_ptr<RoomForecast> of_group;
  };
  using Forecasts = std::vector<Forecast>;

  // Running sequences keep their blocks, and the free blocks are for all. A block with several
  // holders counts for each of them, here and in what they are expected to need.
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

  // Adds the sequence to all forecasts, or to none.
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
    bool is_spoken_for = false;  // others need the blocks of its prefix as room
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
      plan_.is_full = true;  // ends the batch block with what there was room for
      return give_up();
    }
    const int32_t tokens = fitting(next, next.known - found.tokens, /*in_prefill=*/true);
    if (tokens <= 0 || (next.given.scored && logit_rows_ <= 0)) return give_up();
    const auto reservation = next.blocks.try_plan(found.tokens + tokens, rooms_, found.blocks);
    // Begins without the prefix if its kept blocks are needed as room, or if it would have to be
    // copied to another pool.
    if (found.tokens > 0 && (!reservation || is_elsewhere(found, *reservation)))
      return begin_without_prefix();
    if (!reservation) {
      if (is_alone()) plan_.exhausted.push_back(next.given.id);  // no room will ever come free
      plan_.is_full = true;
      return false;
    }
    held_.insert(held.begin(), held.end());
    begin(next, std::move(found), tokens, *reservation);
    return true;
  }

  // Whether blocks to be copied or loaded would not be where the sequence takes its own.
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
  int32_t tokens_, prompt_tokens_, logit_rows_;  // what is left in this step
  bool is_short_of_room_ = false;                // a running sequence waits
  StepPlan plan_;
  std::vector<RequestId> beginning_;
  std::unordered_set<RequestId> scheduled_, preempted_;
  std::unordered_map<BlockId, int32_t> given_back_;  // by how many of its holders
  std::unordered_set<BlockId> held_;                 // by sequences that begin
};

StepPlan Scheduler::prepare() const { return Planner(*this).make(); }

}  // namespace spillway
