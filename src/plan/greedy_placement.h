// SPDX-License-Identifier: Apache-2.0
// Greedy placement: the default when nothing else is requested. It fills the fastest memory first.
// It returns a plan that fits or says what is missing; finding the best plan is the planner's work.
#pragma once

#include <optional>
#include <vector>

#include "plan/footprint.h"
#include "plan/memory_fit.h"

namespace spillway {

// Places everything on the device if it fits. Otherwise KV goes to host memory if it would take
// more than a quarter of the device, then weights fill the rest of the device, then the host, then
// the disk. If the device is too small for that, embeddings and head go to host memory as well,
// then KV of any size, then activations between layers. If that is not enough either, sequences are
// attended to in partitions, and KV that the host cannot hold goes to the device and to disk. The
// workspace of kernels is left free. Throws kOutOfMemory, saying which memory is too small for
// what, and how much of the memory that computes would be enough, in multiples of kBudgetStep.
Plan place_greedily(const Model& model, const RunSize& size, const DeviceTraits& traits,
                    const Budgets& budgets);
inline constexpr uint64_t kBudgetStep = uint64_t{1} << 20;
// Like place_greedily(), but returns nullopt where that throws, and fails faster because it
// computes no message.
[[nodiscard]] std::optional<Plan> try_place_greedily(const Model& model, const RunSize& size,
                                                     const DeviceTraits& traits,
                                                     const Budgets& budgets);
// The same functions for many runs of one model: what their plans share is computed once.
Plan place_greedily(PlacedWeights& weights, const RunSize& size, const DeviceTraits& traits,
                    const Budgets& budgets);
[[nodiscard]] std::optional<Plan> try_place_greedily(PlacedWeights& weights, const RunSize& size,
                                                     const DeviceTraits& traits,
                                                     const Budgets& budgets);

// Returns runs to try in turn if memory is short, the wanted one first: with fewer concurrent
// sequences (at least `least.sequences`), then with smaller prompt chunks (at least
// `least.micro_tokens`), which costs only time, then with shorter contexts (at least
// `least.tokens`).
std::vector<RunSize> smaller_runs(const RunSize& wanted, const RunSize& least);
// Prompt chunks below this size cost more time than the memory they free is worth.
inline constexpr int kSmallestChunk = 64;

// Returns the default size of a prompt chunk, for sequences of `tokens` tokens. Each chunk reads
// all KV before it, which may have to cross the bus, so chunks are larger in long sequences.
int usual_chunk(bool has_device, int64_t tokens);

}  // namespace spillway
