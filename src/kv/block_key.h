// SPDX-License-Identifier: Apache-2.0
// The key of a KV block: a hash of the tokens at its positions and of all tokens before them.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>

#include "tensor/kv_format.h"

namespace spillway {

// A 128-bit hash, wide enough that two sequences with different tokens never have the same key in
// practice.
struct BlockKey {
  uint64_t low = 0, high = 0;
  bool operator==(const BlockKey&) const = default;
};

// Describes what a block contains, and at which position.
struct BlockContents {
  BlockKey key = {};
  BlockKey parent = {};  // key of the block before it, without which it is of no use
  int32_t position = 0;  // tokens before it
  int32_t tokens = kKvBlockTokens;
};

// The key with which chains begin. `salt` says what else KV depends on: the model and the type of
// KV.
BlockKey first_key(std::string_view salt);
// The key with which the chains of one group of sequences begin, so that they differ from those of
// all other groups. `salt`, which is not empty, names the group.
BlockKey salted_key(const BlockKey& first, std::string_view salt);
// The key under which a group of layers (model/state_group.h) keeps its state for the tokens of a
// chain's key. For group 0 it is the chain's key itself.
BlockKey group_key(const BlockKey& chain, int group);
// The key of the block with these tokens, at most kKvBlockTokens, after the block with key
// `before`.
BlockKey next_key(const BlockKey& before, std::span<const int32_t> tokens);

}  // namespace spillway

template <>
struct std::hash<spillway::BlockKey> {
  size_t operator()(const spillway::BlockKey& key) const noexcept { return key.low; }
};
