// SPDX-License-Identifier: Apache-2.0
// Models whose layers keep different state: some keep all tokens, others a window. Answers do not
// depend on blocks being released behind windows, on how prompts are chunked, or on other requests.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/perplexity.h"
#include "model/weight_slots.h"
#include "tests/generation/engine_answers.h"
#include "tests/generation/sequence_tables.h"
#include "tests/generation/tiny_models.h"
#include "tests/logits_error.h"

namespace spillway::testing_models {
namespace {

// Returns the most likely tokens behind a prompt, from a decoder whose block tables keep all
// blocks.
std::vector<TokenId> continue_with_all_blocks(TinyRuntime& runtime, std::vector<TokenId> tokens,
                                              int count) {
  KvCache kv = runtime.make_kv(60);
  Decoder decoder = runtime.make_decoder(300);
  std::vector<std::vector<BlockId>> tables;
  for (int group = 0; group < kv.groups(); ++group)
    tables.push_back(kv.blocks_in_order(0, 60, group));
  std::vector<TokenId> answer;
  for (size_t start = 0; static_cast<int>(answer.size()) < count;) {
    StepSequence sequence{std::span<const TokenId>(tokens).subspan(start),
                          static_cast<int32_t>(start), tables[0], 1};
    for (size_t group = 1; group < tables.size(); ++group)
      sequence.other_tables[group - 1] = tables[group];
    start = tokens.size();
    const Activations logits = decoder.step(kv, {&sequence, 1});
    const std::span row(logits.f32(), static_cast<size_t>(logits.cols));
    answer.push_back(static_cast<TokenId>(std::ranges::max_element(row) - row.begin()));
    tokens.push_back(answer.back());
  }
  return answer;
}

class StateGroupsTest : public testing::TestWithParam<std::string> {
 protected:
  StateGroupsTest() : runtime_(GetParam()) { runtime_.device.ops().set_deterministic(true); }

  const std::vector<TokenId>& expected(const GenerationRequest& request) {
    std::vector<TokenId>& known = expected_[request.prompt];
    if (known.empty())
      known = continue_with_all_blocks(runtime_, request.prompt, request.max_tokens);
    return known;
  }
  void check_answers(Engine& engine, const std::vector<GenerationRequest>& requests) {
    std::map<RequestId, GenerationRequest> submitted;
    for (const GenerationRequest& request : requests) submitted[engine.submit(request)] = request;
    const auto answers = run_all(engine);
    ASSERT_EQ(answers.size(), requests.size());
    for (const auto& [id, answer] : answers) EXPECT_EQ(answer.ids, expected(submitted.at(id)));
  }

  TinyRuntime runtime_;
  std::map<std::vector<TokenId>, std::vector<TokenId>> expected_;
};

std::vector<GenerationRequest> requests_of_many_lengths() {
  std::vector<GenerationRequest> requests;
  for (uint32_t n = 0; n < 7; ++n)
    requests.push_back(make_request(3 + static_cast<int>(n) * 29, n, 90));
  return requests;
}

TEST_P(StateGroupsTest, AnswersAreThoseWithAllBlocksWhateverTheChunksAndTheBatch) {
  for (const int step_tokens : {5, 16, 64, 300}) {
    SCOPED_TRACE(step_tokens);
    KvCache kv = runtime_.make_kv(200);
    Decoder decoder = runtime_.make_decoder(300);
    Engine engine(decoder, kv, nullptr,
                  {.max_step_tokens = step_tokens, .admission = {.max_sequences = 4}});
    check_answers(engine, requests_of_many_lengths());
  }
}

TEST_P(StateGroupsTest, AnswersAreTheSameWhenSequencesArePreempted) {
  int64_t preemptions = 0;
  // If all layers have windows, sequences need few blocks, so the pool must be small.
  for (const int32_t blocks : {6, 7, 9, 12, 20}) {
    KvCache kv = runtime_.make_kv(blocks);
    if (kv.groups() > 1 && blocks < 20) continue;
    Decoder decoder = runtime_.make_decoder(64);
    Engine engine(decoder, kv, nullptr, {.max_step_tokens = 16});
    check_answers(engine, requests_of_many_lengths());
    preemptions += engine.stats().preemptions;
  }
  EXPECT_GT(preemptions, 0);
}

INSTANTIATE_TEST_SUITE_P(Kinds, StateGroupsTest,
                         testing::Values("window", "mixed", "mixed-deep", "chunks", "chunks-only",
                                         "shared"),
                         [](const auto& kind) {
                           std::string name = kind.param;
                           std::erase(name, '-');
                           return name;
                         });

// A model some of whose layers have no keys and values has the logits of a model where each layer
// has them, and these layers find the owner's in place of their own.
TEST(SharedStateTest, LayersAttendToTheKeysAndValuesOfTheirOwner) {
  TinyRuntime shared("shared"), own("shared-own");
  const StateGroups& states = shared.model.spec.states;
  const int layers = own.model.spec.layer_count();
  for (int layer = kEmbeddingList; layer <= layers; ++layer) {
    const int list = layer == layers ? kHeadList : layer;
    for (const WeightSlot& slot : weight_slots(shared.model.spec)) {
      if (slot.layer != list) continue;
      const auto of = [&](const TinyRuntime& runtime) {
        const ListWeights& weights =
            list == kEmbeddingList ? runtime.weights.embedding : runtime.weights.list(layer);
        const MatrixWeights& matrix = weights.of(slot.op, slot.matrix);
        return slot.is_bias ? matrix.bias : matrix.weight;
      };
      const WeightView from = of(shared), to = of(own);
      ASSERT_EQ(from.bytes(), to.bytes()) << slot.name;
      std::memcpy(const_cast<std::byte*>(to.data), from.data, static_cast<size_t>(from.bytes()));
    }
  }
  const std::vector<TokenId> tokens = tiny_prompt(150, 6);
  const auto logits = [&](TinyRuntime& runtime, bool takes_over) {
    runtime.device.ops().set_deterministic(true);
    KvCache kv = runtime.make_kv(20);
    Decoder decoder = runtime.make_decoder(40);
    if (takes_over) {
      int layer = 0;
      decoder.observe_attention([&](const auto&, const KvLayerView& view, auto, const auto&) {
        const LayerStatePlace& place = states.layers[static_cast<size_t>(layer++ % layers)];
        if (place.owns) return;
        const StateGroup& group = states.groups[static_cast<size_t>(place.group)];
        const KvLayerView owner = kv.layer(group.layers[static_cast<size_t>(place.index)]);
        const auto bytes = static_cast<size_t>(view.block_bytes() * view.blocks);
        std::memcpy(view.k, owner.k, bytes);
        std::memcpy(view.v, owner.v, bytes);
      });
    }
    std::vector<float> all;
    forward_all(decoder, kv, tokens, 0, [&](int64_t, const Activations& rows) {
      all.insert(all.end(), rows.f32(), rows.f32() + rows.rows * rows.cols);
    });
    return all;
  };
  const std::vector<float> expected = logits(own, /*takes_over=*/true);
  EXPECT_EQ(logits(shared, false), expected);
  EXPECT_GT(nmse(logits(own, /*takes_over=*/false), expected), 1e-3) << "it makes a difference";
}

// If all layers attend to chunks, tokens see nothing before their chunk: their logits are those of
// a sequence that begins with the chunk, but for the rounding of other rope angles.
TEST(ChunkTest, TokensSeeWhatIsInTheirChunk) {
  TinyRuntime runtime("chunks-only");
  const auto logits = [&](std::span<const TokenId> tokens) {
    KvCache kv = runtime.make_kv(20);
    Decoder decoder = runtime.make_decoder(7);
    std::vector<float> all;
    forward_all(decoder, kv, tokens, 0, [&](int64_t, const Activations& rows) {
      all.insert(all.end(), rows.f32(), rows.f32() + rows.rows * rows.cols);
    });
    return all;
  };
  const std::vector<TokenId> tokens = tiny_prompt(90, 3);
  const std::vector<float> whole = logits(tokens);
  const size_t columns = whole.size() / tokens.size();
  for (const size_t first : {0u, 32u, 64u}) {
    const size_t count = std::min<size_t>(32, tokens.size() - first);
    const std::vector<float> alone = logits(std::span(tokens).subspan(first, count));
    const std::vector<float> there(
        whole.begin() + static_cast<std::ptrdiff_t>(first * columns),
        whole.begin() + static_cast<std::ptrdiff_t>((first + count) * columns));
    EXPECT_LE(nmse(there, alone), 1e-9) << first;
  }
}

}  // namespace
}  // namespace spillway::testing_models
