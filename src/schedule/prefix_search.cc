// SPDX-License-Identifier: Apache-2.0
#include "schedule/prefix_search.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace spillway {

PrefixSearch::PrefixSearch(const BlockAllocator& allocator, const Sequence& sequence)
    : allocator_(allocator), of_(sequence) {
  for (int group = 0; group < allocator.groups(); ++group) {
    if (allocator.rule(group).kind != StateKind::kFull) continue;
    Entries chain{.group = group};
    for (size_t i = 0; i < of_.keys.size(); ++i) {
      const auto block = allocator.try_peek(key(i, group));
      if (!block || !allocator.can_follow(chain.blocks, *block, of_.spans)) break;
      if (!full_.empty() && block->tier != tier_at(full_[0].blocks, i)) break;
      chain.blocks.push_back(*block);
    }
    full_.push_back(std::move(chain));
  }
}

FoundPrefix PrefixSearch::longest(const IsStored& is_stored) const {
  size_t whole = of_.keys.size();
  for (const Entries& chain : full_) {
    size_t end = chain.blocks.size();
    const bool is_on_device = end == 0 || chain.blocks.back().tier == Tier::kDevice;
    const auto can_load = [&] {
      return is_stored && is_on_device && tier_at(full_[0].blocks, end) == Tier::kDevice &&
             is_stored(key(end, chain.group), chain.group);
    };
    while (end < whole && can_load()) ++end;
    whole = std::min(whole, end);
  }
  while (true) {
    // The longer the prefix, the fewer entries a window needs.
    const size_t farthest = std::min(of_.most, (whole + 1) * kKvBlockTokens);
    const auto missing = look_at(whole, farthest, is_stored).missing;
    if (missing && *missing < whole) {
      whole = *missing;
      continue;
    }
    if (auto found = try_with_tail(whole, is_stored)) return *std::move(found);
    if (whole == 0) return {};
    Candidate candidate = look_at(whole, whole * kKvBlockTokens, is_stored);
    const size_t next = std::min(candidate.missing.value_or(whole), whole - 1);
    if (!candidate.missing) {
      FoundPrefix found = found_in(std::move(candidate), whole);
      const bool can_copy = !allocator_.has_states() || ends_on_device(found);
      if (can_copy && add_ends(of_.keys[whole - 1], /*paged=*/false, is_stored, found))
        return found;
    }
    whole = next;
  }
}

PrefixSearch::Candidate PrefixSearch::look_at(size_t whole, size_t tokens,
                                              const IsStored& is_stored) const {
  Candidate candidate;
  for (int group = 0; group < allocator_.groups(); ++group) {
    const StateRule& rule = allocator_.rule(group);
    if (rule.keeps_all()) continue;
    const std::vector<BlockId>* anchor = nullptr;
    if (!candidate.windows.empty()) anchor = &candidate.windows[0].blocks;
    if (!full_.empty()) anchor = &full_[0].blocks;
    Entries window{.group = group};
    candidate.missing = look_for(window, whole, tokens, is_stored, anchor);
    if (candidate.missing) return candidate;
    candidate.windows.push_back(std::move(window));
  }
  return candidate;
}

std::optional<size_t> PrefixSearch::look_for(Entries& window, size_t whole, size_t tokens,
                                             const IsStored& is_stored,
                                             const std::vector<BlockId>* anchor) const {
  const int group = window.group;
  const auto unreachable = allocator_.rule(group).unreachable(static_cast<int64_t>(tokens));
  const size_t first = std::min(static_cast<size_t>(unreachable), whole);
  const auto try_peek = [&](size_t entry) {
    const auto block = allocator_.try_peek(key(entry, group));
    const bool is_elsewhere = block && anchor != nullptr && block->tier != tier_at(*anchor, entry);
    return is_elsewhere ? std::nullopt : block;
  };
  const auto can_load = [&](size_t entry) {
    return is_stored && (anchor == nullptr || tier_at(*anchor, entry) == Tier::kDevice) &&
           is_stored(key(entry, group), group);
  };
  // Without a full group, the memory of a window depends on where it begins: at another length an
  // entry that exists anywhere may be in the right memory.
  const auto is_missing = [&](size_t entry) {
    return !full_.empty() || (!allocator_.try_peek(key(entry, group)) &&
                              !(is_stored && is_stored(key(entry, group), group)));
  };
  // Checks the last entry first, because a window that was evicted usually lacks it as well.
  if (first < whole && !try_peek(whole - 1) && !can_load(whole - 1) && is_missing(whole - 1))
    return whole - 1;
  const auto begin = first < whole ? try_peek(first) : std::nullopt;
  for (size_t entry = 0; entry < first; ++entry) {
    const Tier tier = anchor != nullptr ? tier_at(*anchor, entry)
                      : begin           ? begin->tier
                                        : Tier::kDevice;
    window.blocks.push_back(BlockId::released(tier, group));
  }
  size_t next = first;
  for (; next < whole; ++next) {
    const auto block = try_peek(next);
    if (!block || !allocator_.can_follow(window.blocks, *block, of_.spans)) break;
    window.blocks.push_back(*block);
  }
  const bool is_on_device = window.blocks.empty() || window.blocks.back().tier == Tier::kDevice;
  std::optional<size_t> missing;
  for (size_t entry = whole; entry-- > next;) {
    if (is_on_device && can_load(entry)) continue;
    if (is_missing(entry)) return entry;
    missing = whole;
  }
  if (missing) return missing;
  for (; next < whole; ++next) window.loads.push_back(key(next, group));
  return std::nullopt;
}

FoundPrefix PrefixSearch::found_in(Candidate&& candidate, size_t whole) const {
  FoundPrefix found;
  found.tokens = static_cast<int32_t>(whole) * kKvBlockTokens;
  for (const Entries& chain : full_) {
    const size_t in_pool = std::min(whole, chain.blocks.size());
    found.blocks[index_of(chain.group)].assign(
        chain.blocks.begin(), chain.blocks.begin() + static_cast<std::ptrdiff_t>(in_pool));
    for (size_t i = in_pool; i < whole; ++i)
      found.loads[index_of(chain.group)].push_back(key(i, chain.group));
  }
  for (Entries& window : candidate.windows) {
    found.blocks[index_of(window.group)] = std::move(window.blocks);
    found.loads[index_of(window.group)] = std::move(window.loads);
  }
  return found;
}

std::optional<FoundPrefix> PrefixSearch::try_with_tail(size_t whole,
                                                       const IsStored& is_stored) const {
  const auto rest = of_.tokens.subspan(whole * kKvBlockTokens);
  const size_t room = of_.most - whole * kKvBlockTokens;
  if (room == 0) return std::nullopt;
  const BlockKey& before = whole == 0 ? of_.first_key : of_.keys[whole - 1];
  for (size_t tokens = std::min<size_t>(rest.size(), kKvBlockTokens); tokens > 0; --tokens) {
    const BlockKey tail = next_key(before, rest.first(tokens));
    const size_t used = std::min(tokens, room);
    const bool is_stored_there =
        of_.has_stored_tail && whole == of_.keys.size() && tokens < rest.size();
    FoundPrefix ends;
    if (!add_ends(tail, /*paged=*/true, is_stored_there ? is_stored : nullptr, ends)) continue;
    // A state is usable only for all of its tokens.
    if (allocator_.has_states() &&
        (used < tokens || !add_ends(tail, /*paged=*/false, is_stored, ends)))
      continue;
    Candidate candidate = look_at(whole, whole * kKvBlockTokens + used, is_stored);
    if (candidate.missing && *candidate.missing < whole)
      return std::nullopt;  // shorter prefixes need even more
    if (candidate.missing) continue;
    FoundPrefix found = found_in(std::move(candidate), whole);
    found.tokens += static_cast<int32_t>(used);
    if (!ends_on_device(found)) return std::nullopt;
    found.partly = ends.partly;
    for (size_t group = 0; group < found.loads.size(); ++group)
      std::ranges::copy(ends.loads[group], std::back_inserter(found.loads[group]));
    return found;
  }
  return std::nullopt;
}

bool PrefixSearch::ends_on_device(const FoundPrefix& found) {
  return std::ranges::all_of(found.blocks, [](const std::vector<BlockId>& blocks) {
    return blocks.empty() || blocks.back().tier == Tier::kDevice;
  });
}

bool PrefixSearch::add_ends(const BlockKey& tokens, bool paged, const IsStored& is_stored,
                            FoundPrefix& found) const {
  for (int group = 0; group < allocator_.groups(); ++group) {
    if (allocator_.rule(group).is_paged() != paged) continue;
    const BlockKey end = group_key(tokens, group);
    const auto block = allocator_.try_peek(end);
    // Partial blocks in other memories are not used: stores to them may be in flight, and the
    // copies of a step hide the time to compute a few tokens.
    if (block && block->tier == Tier::kDevice) {
      found.partly[index_of(group)] = block;
    } else if (!block && is_stored && is_stored(end, group)) {
      found.loads[index_of(group)].push_back(end);
    } else {
      return false;
    }
  }
  return true;
}

}  // namespace spillway
