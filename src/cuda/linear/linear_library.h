// SPDX-License-Identifier: Apache-2.0
// Linear layers by cuBLASLt, which is loaded when first needed: linked, it would cost every start
// of the program up to 0.3 s and 200 MB.
#pragma once

#include <cuda_runtime_api.h>

#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "cuda/linear/linear.h"

namespace spillway::cuda {

// One matrix product as the library computes it: out[tokens, n] (+)= x[tokens, k] * w[n, k]^T, with
// F32 sums (true F32 for F32 inputs, never TF32).
struct LibraryShape {
  int64_t n = 0;
  int64_t whole_n = 0;  // n of the product that this is a slice of; its algorithm is used
  int64_t k = 0;
  int64_t tokens = 0;
  int64_t x_stride = 0;
  int64_t out_stride = 0;
  DType dtype = DType::kF16;  // of w and x
  DType out_type = DType::kF16;
  bool accumulate = false;
  bool bias = false;        // F32, added inside the product
  bool relu = false;        // applied after the bias
  uint32_t alignment = 16;  // bytes, of all pointers
  size_t workspace_bytes = 0;
  auto operator<=>(const LibraryShape&) const = default;
};

// Owns the library and a handle of it for the current device. Thread-safe.
class CublasLt {
 public:
  // Returns nullptr if there is no library (13 or 12) or it cannot start; `why` is set to the
  // reason.
  static std::unique_ptr<CublasLt> try_load(std::string* why = nullptr);
  ~CublasLt();
  CublasLt(const CublasLt&) = delete;
  CublasLt& operator=(const CublasLt&) = delete;

  // Returns how many algorithms the library proposes for the shape, its best guess first; 0: it has
  // none.
  int choices(const LibraryShape& shape);
  // Makes matmul() use this algorithm for the shape from now on; the default is the first.
  void choose(const LibraryShape& shape, int choice);
  // Throws kUnsupported if the library has no algorithm for the shape.
  void matmul(const LibraryShape& shape, const std::byte* w, const std::byte* x, const float* bias,
              std::byte* out, std::byte* workspace, cudaStream_t stream);

 private:
  struct Library;
  struct Plan;
  CublasLt();
  Plan& plan_of(const LibraryShape& shape);

  std::unique_ptr<Library> library_;
  std::mutex mutex_;
  std::map<LibraryShape, std::unique_ptr<Plan>> plans_;
};

inline constexpr size_t kLibraryWorkspaceBytes = size_t{32} << 20;  // NVIDIA's advice for Hopper

// Returns whether the library has products of these types: the results are F32 or have the type of
// the matrices. Models of mixed types need others. This depends on types alone, so that a slice of
// a matrix is computed like the whole.
bool library_takes(const LinearCall& call);
// Returns the bytes of `scratch` that linear_library() needs: the library's workspace and, for
// gated calls, room for gate and up before they are combined.
size_t library_scratch_bytes(const LinearCall& call);
// Computes a LinearCall by the library. Parts that are contiguous in memory are one product.
// Epilogues that the library does not have are computed by a kernel afterwards, on values rounded
// to out's type; the library's own conversion to F16 does not saturate.
void linear_library(CublasLt& library, const LinearCall& call, const LinearScratch& scratch,
                    cudaStream_t stream);
// Measures every proposed algorithm for the products of a call and keeps the fastest. The calls are
// alike except for their weights; there must be enough of them that no weights stay in the L2
// cache. `out` is overwritten. Synchronizes; not for streams under capture.
void tune_library(CublasLt& library, std::span<const LinearCall> calls,
                  const LinearScratch& scratch, cudaStream_t stream);

// Computes out = f(out + bias) in place (linear_finish.cu); bias may be null, `activate` false.
void finish_rows(const Activations& out, const float* bias, bool activate, ActivationKind kind,
                 cudaStream_t stream);
// Computes out[tokens, n] = f(both[:, :n] + gate_bias) * (both[:, n:] + up_bias); both is packed
// [tokens, 2n].
void finish_gated_rows(const Activations& both, const float* gate_bias, const float* up_bias,
                       ActivationKind kind, const Activations& out, cudaStream_t stream);

}  // namespace spillway::cuda
