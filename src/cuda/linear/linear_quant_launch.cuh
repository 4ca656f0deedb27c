// SPDX-License-Identifier: Apache-2.0
// Shapes the launches of quant_linear()'s kernels: clusters, rings, phases, thread blocks.
#pragma once

#include <algorithm>
#include <mutex>

#include "cuda/kernel/launch.cuh"
#include "cuda/linear/linear_quant_few.cuh"
#include "cuda/linear/linear_quant_inl.cuh"
#include "cuda/linear/linear_quant_wgmma.cuh"

namespace spillway::cuda {

// Shapes the launch: the smallest cluster that leaves each thread block a small x, and rings as
// deep as half of an SM's shared memory allows (so that two thread blocks fit, or the next kernel's
// first one). With a large x all of it is used, and phases if even that is too little.
template <class Block>
bool shape_quant_launch(QuantArgs& a, int token_tiles, const QuantLinearTuning& tuning,
                        const QuantDeviceLimits& limits) {
  constexpr int64_t kSmallXBytes = 40 << 10;
  const int most = limits.clusters ? kQuantSlices : 1;
  const auto fits = [&](int cluster, int phases, int fewest_stages, int bytes) {
    a.cluster = cluster;
    a.phases = phases;
    const int deepest = tuning.stages == 0 ? 4 : tuning.stages;
    for (int stages = deepest; stages >= std::min(fewest_stages, deepest); --stages) {
      a.stages = stages;
      QuantShape<Block>::complete(a, token_tiles);
      if (a.shared.total <= bytes) return true;
    }
    return false;
  };
  for (int cluster = 1; cluster <= most; cluster *= 2) {
    const bool small_x = static_cast<int64_t>(a.tokens) * a.k * 2 / cluster <= kSmallXBytes;
    if (tuning.cluster != 0 && limits.clusters ? cluster != tuning.cluster
                                               : cluster < most && !small_x) {
      continue;
    }
    if (fits(cluster, 1, 2, limits.shared_of(2))) return true;
  }
  for (int phases = 1; phases <= 64; phases *= 2) {
    for (int cluster = 1; cluster <= most; cluster *= 2) {
      if (tuning.cluster != 0 && limits.clusters && cluster != tuning.cluster) continue;
      if (fits(cluster, phases, phases == 1 ? 2 : 1, limits.shared_bytes)) return true;
    }
  }
  return false;
}

// Lets a kernel use all of an SM's shared memory. All of these kernels request the same division of
// memory into shared memory and L1: an SM must be empty to change it, so thread blocks of two
// kernels could not share an SM.
template <class... Params>
void allow_all_shared_memory(void (*kernel)(Params...), const QuantDeviceLimits& limits) {
  SPW_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      limits.shared_bytes));
  SPW_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                      cudaSharedmemCarveoutMaxShared));
}

// The number of clusters of 1, 2, 4, 8 thread blocks that the device holds at a time, with one and
// with two thread blocks per SM: fewer than its SMs, since clusters do not span the GPU's
// partitions.
struct QuantResidency {
  std::once_flag once;
  int clusters[2][4] = {};
};

template <class Block, int kTokenTiles>
void launch_quant_kernel(const QuantArgs& a, const QuantLinearTuning& tuning,
                         const QuantDeviceLimits& limits, cudaStream_t stream) {
  auto* kernel = quant_linear_kernel<Block, kTokenTiles>;
  static QuantResidency residencies[kQuantDevices];
  QuantResidency& residency = residencies[limits.device];
  std::call_once(residency.once, [&] {
    allow_all_shared_memory(kernel, limits);
    for (int per_sm = 1; per_sm <= 2; ++per_sm) {
      for (int i = 0; i < 4; ++i) {
        residency.clusters[per_sm - 1][i] = max_resident_clusters(
            kernel, dim3(kQuantWarps * 32), per_sm == 1 ? limits.shared_bytes : limits.shared_of(2),
            1 << i, limits.sms, per_sm);
      }
    }
  });
  // Uses one or two thread blocks per SM: whichever leaves the SM with most work less of it; two if
  // it is equal.
  const int* one = residency.clusters[0] + 3 - a.slices_log2;
  const int* two = residency.clusters[1] + 3 - a.slices_log2;
  int slots = *one;
  if (kTokenTiles <= 4 && a.shared.total <= limits.shared_of(2) && *two > *one) {
    const auto rounds = [&](int clusters) { return (a.sets + clusters - 1) / clusters; };
    if (2 * rounds(*two) <= rounds(*one)) slots = *two;
    if (tuning.blocks_per_sm != 0) slots = tuning.blocks_per_sm == 2 ? *two : *one;
  }
  const int clusters = std::max(1, std::min(a.sets, slots));
  launch_clusters(kernel, dim3(clusters * a.cluster), dim3(kQuantWarps * 32), a.shared.total,
                  a.cluster, stream, a);
}

// Uses two thread blocks per SM if two, or one, of the next kernel fit beside them; one if only
// that leaves room for deep rings.
template <class Block>
bool shape_few_launch(QuantArgs& a, int& per_sm, const QuantLinearTuning& tuning,
                      const QuantDeviceLimits& limits) {
  const auto fits = [&](int blocks, int fewest_stages) {
    const int deepest = tuning.stages == 0 ? 4 : tuning.stages;
    for (a.stages = deepest; a.stages >= std::min(fewest_stages, deepest); --a.stages) {
      complete_few<Block>(a);
      if (a.shared.total <= limits.shared_of(blocks)) return true;
    }
    return false;
  };
  struct Choice {
    int per_sm, resident, stages;
  };
  constexpr Choice kChoices[] = {{2, 4, 2}, {2, 3, 2}, {1, 2, 2}, {1, 1, 2}, {1, 1, 1}};
  per_sm = tuning.blocks_per_sm;
  if (per_sm > 0) {
    return fits(2 * per_sm, 2) || fits(per_sm, 1) || fits(1, 1);
  }
  // For one token, as measured on an H200: three thread blocks, and as much shared memory again for
  // the next kernel's.
  if (a.tokens == 1) {
    per_sm = 3;
    if (fits(6, 2) || fits(3, 1)) return true;
  }
  for (const Choice& choice : kChoices) {
    per_sm = choice.per_sm;
    if (fits(choice.resident, choice.stages)) return true;
  }
  return false;
}

template <class Block, int M, int kResident>
void launch_few_kernel(const QuantArgs& a, int per_sm, const QuantDeviceLimits& limits,
                       cudaStream_t stream) {
  auto* kernel = quant_linear_few_kernel<Block, M, kResident>;
  static std::once_flag once[kQuantDevices];
  std::call_once(once[limits.device], [&] { allow_all_shared_memory(kernel, limits); });
  launch(kernel, dim3(std::min(a.sets, limits.sms * per_sm)), dim3(kQuantWarps * 32),
         a.shared.total, stream, a);
}

template <class Block>
bool launch_few(QuantArgs a, const QuantLinearTuning& tuning, const QuantDeviceLimits& limits,
                cudaStream_t stream) {
  int per_sm = 0;
  if (!shape_few_launch<Block>(a, per_sm, tuning, limits)) return false;
  a.l2_sets = tuning.l2_sets < 0 ? 0 : tuning.l2_sets;
  a.next_start = tuning.next_start == 0 ? 1 : tuning.next_start;
  const bool four = tuning.resident == 4;
  if (a.tokens > 1) {
    a.tokens == 2 ? launch_few_kernel<Block, 2, 3>(a, per_sm, limits, stream)
                  : launch_few_kernel<Block, 4, 3>(a, per_sm, limits, stream);
  } else if (!TileFormat<Block>::kSplit && four) {
    launch_few_kernel<Block, 1, TileFormat<Block>::kSplit ? 3 : 4>(a, per_sm, limits, stream);
  } else {
    launch_few_kernel<Block, 1, 3>(a, per_sm, limits, stream);
  }
  return true;
}

// The number of clusters of a kernel that run concurrently, with one and with two thread blocks per
// SM.
struct WgmmaResidency {
  std::once_flag once;
  int clusters[2] = {};
};

template <class Block, int kTokens>
bool launch_wgmma_kernel(QuantArgs a, const QuantLinearTuning& tuning,
                         const QuantDeviceLimits& limits, cudaStream_t stream) {
  auto* kernel = quant_linear_wgmma_kernel<Block, kTokens>;
  static WgmmaResidency residencies[kQuantDevices];
  WgmmaResidency& residency = residencies[limits.device];
  std::call_once(residency.once, [&] {
    allow_all_shared_memory(kernel, limits);
    for (int i = 0; i < 2; ++i) {
      residency.clusters[i] =
          max_resident_clusters(kernel, dim3(wgmma_threads(kTokens)), limits.shared_of(i + 1),
                                kQuantSlices, limits.sms, i + 1);
    }
  });
  const auto fits = [&](int blocks) {
    const int deepest = tuning.stages == 0 ? kWgmmaStages : std::min(tuning.stages, kWgmmaStages);
    for (a.stages = deepest; a.stages >= std::min(2, deepest); --a.stages) {
      WgmmaShape<Block>::complete(a, kTokens);
      if (a.shared.total <= limits.shared_of(blocks) && residency.clusters[blocks - 1] > 0)
        return true;
    }
    return false;
  };
  // Takes whole rows if x of them fits, and two thread blocks per SM if they fit.
  const int all_blocks = a.k / Block::kElements;
  const int most_parts = a.epilogue == Epilogue::kAccumulate ? 4 : 1;
  for (int parts = 1; parts <= most_parts; parts *= 2) {
    a.first_block = 0;
    a.blocks = (all_blocks + parts - 1) / parts;
    for (int blocks = kTokens <= 32 && tuning.blocks_per_sm != 1 ? 2 : 1; blocks > 0; --blocks) {
      if (!fits(blocks)) continue;
      const int clusters = std::min(a.sets, residency.clusters[blocks - 1]);
      for (; a.first_block < all_blocks; a.first_block += a.blocks) {
        a.blocks = std::min(a.blocks, all_blocks - a.first_block);
        launch_clusters(kernel, dim3(clusters * kQuantSlices), dim3(wgmma_threads(kTokens)),
                        a.shared.total, kQuantSlices, stream, a);
        for (QuantPart& part : a.parts) part.bias = nullptr;  // the bias is added only once
      }
      return true;
    }
  }
  return false;
}

// Returns false if x does not fit.
template <class Block>
bool launch_wgmma(const QuantArgs& a, const QuantLinearTuning& tuning,
                  const QuantDeviceLimits& limits, cudaStream_t stream) {
  if (a.tokens <= 16) return launch_wgmma_kernel<Block, 16>(a, tuning, limits, stream);
  if (a.tokens <= 32) return launch_wgmma_kernel<Block, 32>(a, tuning, limits, stream);
  return launch_wgmma_kernel<Block, 64>(a, tuning, limits, stream);
}

template <class Block>
bool launch_quant(QuantArgs a, const QuantLinearTuning& tuning, const QuantDeviceLimits& limits,
                  cudaStream_t stream) {
  const auto may_be = [&](QuantKernel kernel, bool by_tokens) {
    if (tuning.same_bits) return false;
    return tuning.kernel == kernel || (tuning.kernel == QuantKernel::kByTokens && by_tokens);
  };
  if (a.tokens <= kQuantFewTokens && may_be(QuantKernel::kFew, true) &&
      launch_few<Block>(a, tuning, limits, stream)) {
    return true;
  }
  const bool x_is_aligned = reinterpret_cast<uintptr_t>(a.x) % 16 == 0 && a.x_stride % 8 == 0;
  if (limits.wgmma && x_is_aligned && may_be(QuantKernel::kWgmma, a.tokens > kQuantSliceTokens)) {
    if (launch_wgmma<Block>(a, tuning, limits, stream)) return true;
  }
  // On Hopper the kernel below is not compiled for more tokens.
  if (limits.wgmma && a.tokens > kQuantSameBitsTokens) return false;
  const int token_tiles = a.tokens <= 8 ? 1 : a.tokens <= 16 ? 2 : a.tokens <= 32 ? 4 : 8;
  if (!shape_quant_launch<Block>(a, token_tiles, tuning, limits)) return false;
  switch (token_tiles) {
    case 1:
      launch_quant_kernel<Block, 1>(a, tuning, limits, stream);
      break;
    case 2:
      launch_quant_kernel<Block, 2>(a, tuning, limits, stream);
      break;
    case 4:
      launch_quant_kernel<Block, 4>(a, tuning, limits, stream);
      break;
    default:
      launch_quant_kernel<Block, 8>(a, tuning, limits, stream);
  }
  return true;
}

}  // namespace spillway::cuda
