// SPDX-License-Identifier: Apache-2.0
#include "text/merge_table.h"

#include <string>

#include "base/error.h"

namespace spillway {

MergeTable::MergeTable(const Vocabulary& vocabulary, const TokenIndex& index) {
  const std::vector<std::string>& merges = vocabulary.merges;
  size_t capacity = 16;
  while (capacity < merges.size() * 2) capacity *= 2;
  slots_.resize(capacity);
  std::string joint;
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const auto sides = try_split_merge(merges[rank]);
    SPW_CHECK(sides.has_value(), kInvalidArgument,
              "vocabulary: merge {} is not two tokens with a space between", rank);
    joint.assign(sides->first).append(sides->second);
    const TokenId left = index.find(sides->first);
    const TokenId right = index.find(sides->second);
    const TokenId both = index.find(joint);
    SPW_CHECK(left != kNoToken && right != kNoToken && both != kNoToken, kInvalidArgument,
              "vocabulary: merge {} names a token that does not exist", rank);
    // Plain text must not become a control token, so merges that make one are left out.
    if (vocabulary.tokens[static_cast<size_t>(both)].kind == TokenKind::kControl) continue;
    insert(left, right, {.rank = static_cast<uint32_t>(rank), .id = both});
  }
}

void MergeTable::insert(TokenId left, TokenId right, Merge merge) {
  const uint64_t key = key_of(left, right);
  size_t i = slot_of(key);
  while (slots_[i].key != kEmpty && slots_[i].key != key) i = (i + 1) & (slots_.size() - 1);
  slots_[i] = {key, merge};
}

}  // namespace spillway
