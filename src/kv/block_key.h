// SPDX-License-Identifier: Apache-2.0
// What a block of KV holds, as a number: the tokens of its positions and of all before them.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>

#include "tensor/kv_format.h"

namespace spillway {

// 128 bits: two sequences whose first tokens differ have the same key once in longer than anybody
// computes.
struct BlockKey {
  uint64_t low = 0, high = 0;
  bool operator==(const BlockKey&) const = default;
};

// What a block has, and where that stands.
struct BlockContents {
  BlockKey key = {};
  BlockKey parent = {};  // of the block before, without which it is of no use
  int32_t position = 0;  // tokens before it
  int32_t tokens = kKvBlockTokens;
};

// Where chains begin: `salt` says what else KV depends on, the model and the type of KV.
BlockKey first_key(std::string_view salt);
// Where the chains of one group of sequences begin, apart from those of all other groups: `salt`,
// which is not empty, names the group.
BlockKey salted_key(const BlockKey& first, std::string_view salt);
// The key under which a group of layers (model/state_group.h) keeps what it has for the tokens of a
// chain's key: in the first group that key itself.
BlockKey group_key(const BlockKey& chain, int group);
// Of the block with these tokens, kKvBlockTokens at most, behind the one with key `before`.
BlockKey next_key(const BlockKey& before, std::span<const int32_t> tokens);

}  // namespace spillway

template <>
struct std::hash<spillway::BlockKey> {
  size_t operator()(const spillway::BlockKey& key) const noexcept { return key.low; }
};
