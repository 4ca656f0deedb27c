// SPDX-License-Identifier: Apache-2.0
// How far the state of a sequence can be taken back.
#pragma once

namespace spillway {

// A sequence can be cut back by at most this many tokens: whoever keeps less than the keys of all
// positions keeps what this takes besides.
inline constexpr int kMostCutBack = 16;

}  // namespace spillway
