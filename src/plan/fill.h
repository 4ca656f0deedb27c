// SPDX-License-Identifier: Apache-2.0
// The simple rule for where things go when nobody says: fill the fastest memory first. It always
// fits, or says what is missing; finding the best plan is the planner's work.
#pragma once

#include <optional>
#include <vector>

#include "plan/footprint.h"
#include "plan/memory_fit.h"

namespace spillway {

// All on the device if it fits. Otherwise KV goes to host memory if it would take more than a
// quarter of the device, then weights fill what is left of the device, then the host, then the
// disk. Where the device is too small for that, embeddings and head go to host memory as well, then
// KV of any size, then activations between layers. Where that is not enough either, sequences come
// to the device in parts, and KV that the host cannot hold goes on on the device and on disk. What
// kernels take besides is left free. Throws kOutOfMemory, saying which memory is too small for
// what, and of the memory that computes how much would do, in whole kBudgetStep.
Plan fill_from_the_top(const Model& model, const RunSize& size, const DeviceTraits& traits,
                       const Budgets& budgets);
inline constexpr uint64_t kBudgetStep = uint64_t{1} << 20;
// The same; nullopt where it throws. Faster where it fails, as nothing is found out for a message.
[[nodiscard]] std::optional<Plan> try_fill_from_the_top(const Model& model, const RunSize& size,
                                                        const DeviceTraits& traits,
                                                        const Budgets& budgets);
// Both functions for many runs of one model: what their plans share is computed once.
Plan fill_from_the_top(PlacedWeights& weights, const RunSize& size, const DeviceTraits& traits,
                       const Budgets& budgets);
[[nodiscard]] std::optional<Plan> try_fill_from_the_top(PlacedWeights& weights, const RunSize& size,
                                                        const DeviceTraits& traits,
                                                        const Budgets& budgets);

// Runs to try in turn where memory is short, the wanted one first: with fewer sequences at once
// (`least.sequences` at least), then with prompts in smaller pieces (`least.micro_tokens`), which
// costs time alone, then with shorter contexts (`least.tokens`).
std::vector<RunSize> smaller_runs(const RunSize& wanted, const RunSize& least);
// Smaller pieces of prompts than this free nothing worth their price.
inline constexpr int kSmallestChunk = 64;

// Tokens of prompts that go through a layer together where nobody says, of sequences of so many
// tokens. Each chunk reads all KV before it, which may have to come over the bus: in long sequences
// they are larger.
int usual_chunk(bool has_device, int64_t tokens);

}  // namespace spillway
