// SPDX-License-Identifier: Apache-2.0
// A model of nine layers whose KV may be swapped on an accelerator, and requests to it.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cpu/cpu_device.h"
#include "cpu/emulated_accelerator.h"
#include "engine/engine.h"
#include "memory/transfer_scheduler.h"
#include "tests/generation/engine_answers.h"
#include "tests/generation/tiny_models.h"

namespace spillway::testing_models {

inline constexpr int kLayers = 9;

// A tiny model on an accelerator whose copies arrive late.
struct SwappingRuntime {
  explicit SwappingRuntime(const std::string& kind, int max_delay_us = 100)
      : model(tiny_model(kind)) {
    EmulatedAcceleratorOptions options;
    options.max_delay_us = max_delay_us;
    accelerator = std::make_unique<EmulatedAccelerator>(options);
    accelerator->ops().set_deterministic(true);
    host.ops().set_deterministic(true);
    weights = load_weights(*accelerator, model, {}, {});
    transfers = std::make_unique<TransferScheduler>(*accelerator);
  }
  KvCache make_kv(int32_t blocks, int most_swapped, int spare = kSpareBuffers,
                  KvType type = KvType::kF32, int32_t host_blocks = 0) {
    return KvCache(*accelerator, host, kv_shapes(model.spec.states, type),
                   {.device_blocks = blocks,
                    .host_blocks = host_blocks,
                    .most_swapped = most_swapped,
                    .spare_buffers = spare});
  }
  Decoder make_decoder(int max_tokens, int micro_tokens = 0) {
    return Decoder(*accelerator, model.spec, weights,
                   {.max_tokens = max_tokens,
                    .micro_tokens = micro_tokens,
                    .transfers = transfers.get(),
                    .host = &host});
  }

  CpuDevice host{CpuDeviceOptions{.threads = 1}};
  std::unique_ptr<EmulatedAccelerator> accelerator;
  std::unique_ptr<TransferScheduler> transfers;
  Model model;
  ModelWeights weights;
};

// Returns requests with prompts of many lengths, some of which share a prefix.
inline std::vector<GenerationRequest> requests_of(int count) {
  std::vector<GenerationRequest> requests;
  for (int n = 0; n < count; ++n) {
    GenerationRequest request = make_request(5 + 13 * (n % 7), static_cast<uint32_t>(n + 1),
                                             12 + 9 * (n % 4), n % 3 == 0 ? 0.8F : 0.0F);
    if (n % 2 == 1) {
      const std::vector<TokenId> shared = tiny_prompt(41, 99);
      request.prompt.insert(request.prompt.begin(), shared.begin(), shared.end());
    }
    requests.push_back(std::move(request));
  }
  return requests;
}

inline std::vector<Answer> answers_of(Engine& engine,
                                      const std::vector<GenerationRequest>& requests,
                                      const std::function<void(int step)>& between = {}) {
  std::map<RequestId, Answer> answers;
  for (const GenerationRequest& request : requests) engine.submit(request);
  const auto sink = [&](const GenerationEvent& event) {
    EXPECT_TRUE(event.error.empty()) << event.error;
    if (event.token) answers[event.id].ids.push_back(*event.token);
    if (event.finish) answers[event.id].finish = event.finish;
  };
  for (int step = 0; engine.step(sink); ++step) {
    if (between) between(step);
    if (step > 5000) {
      ADD_FAILURE() << "the engine does not come to an end";
      break;
    }
  }
  std::vector<Answer> all;
  for (const auto& [id, answer] : answers) all.push_back(answer);
  return all;
}

}  // namespace spillway::testing_models
