// SPDX-License-Identifier: Apache-2.0
#include "cuda/linear/linear_library.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <utility>

#include "cuda/cuda_error.h"

#if __has_include(<cublasLt.h>)
#include <cublasLt.h>
#define SPW_HAVE_CUBLASLT_HEADER 1
#endif

namespace spillway::cuda {

#ifdef SPW_HAVE_CUBLASLT_HEADER

namespace {

constexpr int kMaxChoices = 8;

cudaDataType_t cuda_type(DType type) {
  return type == DType::kF16 ? CUDA_R_16F : type == DType::kBF16 ? CUDA_R_16BF : CUDA_R_32F;
}

}  // namespace

// The library's functions that we call, with the handle that they need.
struct CublasLt::Library {
  void* so = nullptr;
  cublasLtHandle_t handle = nullptr;
  decltype(&cublasLtCreate) create = nullptr;
  decltype(&cublasLtDestroy) destroy = nullptr;
  decltype(&cublasLtMatmul) matmul = nullptr;
  decltype(&cublasLtMatmulDescCreate) desc_create = nullptr;
  decltype(&cublasLtMatmulDescDestroy) desc_destroy = nullptr;
  decltype(&cublasLtMatmulDescSetAttribute) desc_set = nullptr;
  decltype(&cublasLtMatrixLayoutCreate) layout_create = nullptr;
  decltype(&cublasLtMatrixLayoutDestroy) layout_destroy = nullptr;
  decltype(&cublasLtMatmulPreferenceCreate) preference_create = nullptr;
  decltype(&cublasLtMatmulPreferenceDestroy) preference_destroy = nullptr;
  decltype(&cublasLtMatmulPreferenceSetAttribute) preference_set = nullptr;
  decltype(&cublasLtMatmulAlgoGetHeuristic) heuristic = nullptr;
  decltype(&cublasLtMatmulAlgoCheck) check_algorithm = nullptr;

  // Looks up all functions. Returns the name of the first one that is missing, or null.
  const char* find_all() {
    const char* missing = nullptr;
    const auto find = [&](auto& function, const char* name) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(so, name));
      if (function == nullptr && missing == nullptr) missing = name;
    };
    find(create, "cublasLtCreate");
    find(destroy, "cublasLtDestroy");
    find(matmul, "cublasLtMatmul");
    find(desc_create, "cublasLtMatmulDescCreate");
    find(desc_destroy, "cublasLtMatmulDescDestroy");
    find(desc_set, "cublasLtMatmulDescSetAttribute");
    find(layout_create, "cublasLtMatrixLayoutCreate");
    find(layout_destroy, "cublasLtMatrixLayoutDestroy");
    find(preference_create, "cublasLtMatmulPreferenceCreate");
    find(preference_destroy, "cublasLtMatmulPreferenceDestroy");
    find(preference_set, "cublasLtMatmulPreferenceSetAttribute");
    find(heuristic, "cublasLtMatmulAlgoGetHeuristic");
    find(check_algorithm, "cublasLtMatmulAlgoCheck");
    return missing;
  }

  ~Library() {
    if (handle != nullptr) (void)destroy(handle);
    // The library stays loaded: its own exit handlers do not survive being unloaded.
  }
};

namespace {

void check(cublasStatus_t status, const char* what) {
  SPW_CHECK(status == CUBLAS_STATUS_SUCCESS, kDevice, "cuBLASLt: {} failed (status {})", what,
            static_cast<int>(status));
}

}  // namespace

// Keeps everything about a shape that does not change from call to call.
struct CublasLt::Plan {
  Library& library;
  cublasLtMatmulDesc_t desc = nullptr;
  cublasLtMatrixLayout_t w = nullptr, x = nullptr, out = nullptr;
  std::vector<cublasLtMatmulHeuristicResult_t> choices;
  int choice = 0;
  std::mutex bias_mutex;  // the bias pointer lives in desc

  explicit Plan(Library& l) : library(l) {}
  ~Plan() {
    if (desc != nullptr) (void)library.desc_destroy(desc);
    for (cublasLtMatrixLayout_t layout : {w, x, out}) {
      if (layout != nullptr) (void)library.layout_destroy(layout);
    }
  }

  void make(const LibraryShape& s) {
    Library& l = library;
    // Row-major [rows, cols] is column-major [cols, rows]: out^T = w * x^T, with w transposed back.
    const cublasOperation_t transposed = CUBLAS_OP_T;
    check(l.desc_create(&desc, CUBLAS_COMPUTE_32F, CUDA_R_32F), "a description");
    check(l.desc_set(desc, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof(transposed)), "TRANSA");
    if (s.bias || s.relu) {
      const cublasLtEpilogue_t epilogue = !s.relu  ? CUBLASLT_EPILOGUE_BIAS
                                          : s.bias ? CUBLASLT_EPILOGUE_RELU_BIAS
                                                   : CUBLASLT_EPILOGUE_RELU;
      check(l.desc_set(desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof(epilogue)),
            "EPILOGUE");
    }
    if (s.bias) {
      const cudaDataType_t type = CUDA_R_32F;
      check(l.desc_set(desc, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &type, sizeof(type)),
            "BIAS_DATA_TYPE");
    }
    const auto n = static_cast<uint64_t>(s.n), k = static_cast<uint64_t>(s.k),
               tokens = static_cast<uint64_t>(s.tokens);
    check(l.layout_create(&w, cuda_type(s.dtype), k, n, s.k), "a layout");
    check(l.layout_create(&x, cuda_type(s.dtype), k, tokens, s.x_stride), "a layout");
    check(l.layout_create(&out, cuda_type(s.out_type), n, tokens, s.out_stride), "a layout");

    cublasLtMatmulPreference_t preference = nullptr;
    check(l.preference_create(&preference), "a preference");
    const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
      (void)l.preference_set(preference, attribute, &value, sizeof(value));
    };
    set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, s.workspace_bytes);
    for (auto attribute :
         {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
          CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
      set(attribute, s.alignment);
    }
    choices.resize(kMaxChoices);
    int found = 0;
    const cublasStatus_t status = l.heuristic(l.handle, desc, w, x, out, out, preference,
                                              kMaxChoices, choices.data(), &found);
    (void)l.preference_destroy(preference);
    choices.resize(status == CUBLAS_STATUS_SUCCESS ? static_cast<size_t>(found) : 0);
    std::erase_if(choices, [](const auto& c) { return c.state != CUBLAS_STATUS_SUCCESS; });
  }
  // Makes a slice use the algorithm of the whole matrix. If that is impossible, which has not been
  // seen yet, the slice keeps its own choices: correct, but not the same bits.
  void choose_as(const Plan& whole) {
    if (whole.choices.empty()) return;
    cublasLtMatmulHeuristicResult_t same = whole.choices[static_cast<size_t>(whole.choice)];
    const cublasLtMatmulAlgo_t algorithm = same.algo;
    const cublasStatus_t status =
        library.check_algorithm(library.handle, desc, w, x, out, out, &algorithm, &same);
    if (status != CUBLAS_STATUS_SUCCESS) return;
    same.algo = algorithm;
    choices = {same};
    choice = 0;
  }
};

CublasLt::CublasLt() : library_(std::make_unique<Library>()) {}
CublasLt::~CublasLt() {
  plans_.clear();  // before the library that they use
}

std::unique_ptr<CublasLt> CublasLt::try_load(std::string* why) {
  std::unique_ptr<CublasLt> lt(new CublasLt);
  Library& l = *lt->library_;
  const auto refuse = [&](std::string reason) {
    if (why != nullptr) *why = std::move(reason);
    return nullptr;
  };
  for (const char* name : {"libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"}) {
    l.so = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (l.so != nullptr) break;
  }
  if (l.so == nullptr) return refuse("libcublasLt.so.13 and .12 cannot be loaded");
  if (const char* missing = l.find_all()) {
    return refuse(fmt::format("libcublasLt has no function {}", missing));
  }
  if (l.create(&l.handle) != CUBLAS_STATUS_SUCCESS) {
    l.handle = nullptr;
    return refuse("cublasLtCreate failed");
  }
  return lt;
}

CublasLt::Plan& CublasLt::plan_of(const LibraryShape& shape) {
  const bool whole = shape.whole_n <= shape.n;
  LibraryShape of_whole = shape;
  if (!whole) of_whole.n = shape.whole_n;
  // The halves of a gated result lie side by side, in the whole matrix further apart than in a
  // slice.
  of_whole.out_stride = std::max(of_whole.out_stride, of_whole.n);
  Plan* const like = whole ? nullptr : &plan_of(of_whole);
  const std::lock_guard lock(mutex_);
  std::unique_ptr<Plan>& plan = plans_[shape];
  if (plan == nullptr) {
    auto made = std::make_unique<Plan>(*library_);
    made->make(shape);
    if (like != nullptr) made->choose_as(*like);
    plan = std::move(made);
  }
  return *plan;
}

int CublasLt::choices(const LibraryShape& shape) {
  return static_cast<int>(plan_of(shape).choices.size());
}

void CublasLt::choose(const LibraryShape& shape, int choice) {
  Plan& plan = plan_of(shape);
  SPW_ASSERT(choice >= 0 && choice < static_cast<int>(plan.choices.size()));
  const std::lock_guard lock(plan.bias_mutex);
  plan.choice = choice;
}

void CublasLt::matmul(const LibraryShape& s, const std::byte* w, const std::byte* x,
                      const float* bias, std::byte* out, std::byte* workspace,
                      cudaStream_t stream) {
  Plan& plan = plan_of(s);
  SPW_CHECK(!plan.choices.empty(), kUnsupported, "cuBLASLt has no algorithm for [{}, {}] x {} {}",
            s.n, s.k, s.tokens, dtype_name(s.dtype));
  const float one = 1, beta = s.accumulate ? 1.0f : 0.0f;
  const std::lock_guard lock(plan.bias_mutex);
  if (s.bias) {
    check(library_->desc_set(plan.desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof(bias)),
          "BIAS_POINTER");
  }
  const cublasLtMatmulHeuristicResult_t& choice = plan.choices[static_cast<size_t>(plan.choice)];
  check(
      library_->matmul(library_->handle, plan.desc, &one, w, plan.w, x, plan.x, &beta, out,
                       plan.out, out, plan.out, &choice.algo, workspace, s.workspace_bytes, stream),
      "cublasLtMatmul");
}

#else  // the library's header is missing

struct CublasLt::Library {};
struct CublasLt::Plan {};
CublasLt::CublasLt() = default;
CublasLt::~CublasLt() = default;
std::unique_ptr<CublasLt> CublasLt::try_load(std::string* why) {
  if (why != nullptr) *why = "built without cublasLt.h";
  return nullptr;
}
CublasLt::Plan& CublasLt::plan_of(const LibraryShape&) { fail_assertion("cuBLASLt", __FILE__, 0); }
int CublasLt::choices(const LibraryShape&) { return 0; }
void CublasLt::choose(const LibraryShape&, int) {}
void CublasLt::matmul(const LibraryShape&, const std::byte*, const std::byte*, const float*,
                      std::byte*, std::byte*, cudaStream_t) {}

#endif

namespace {

// One product of a call, and the epilogue that must follow it.
struct Product {
  LibraryShape shape;
  const std::byte* w = nullptr;
  const float* bias = nullptr;  // added inside the product
  Activations out;
  const float* bias_after = nullptr;
  bool activate_after = false;
};

// No kernel needs more alignment; with this limit, slices of a matrix have the alignment of the
// whole.
constexpr uint64_t kMostAlignment = 16;
uint32_t alignment_of(std::initializer_list<uint64_t> offsets) {
  uint64_t bits = kMostAlignment;
  for (uint64_t offset : offsets) bits |= offset;
  return static_cast<uint32_t>(bits & (~bits + 1));
}

// The scratch memory after its counters and `used` bytes.
struct Workspace {
  std::byte* data = nullptr;
  size_t bytes = 0;
};
Workspace workspace_of(const LinearScratch& scratch, size_t used) {
  const size_t from = kScratchCounterBytes + used;
  if (scratch.bytes <= from) return {};
  return {scratch.data + from, std::min(scratch.bytes - from, kLibraryWorkspaceBytes)};
}

// Returns the whole rows of all parts that can be one product with this one: the same for their
// slices, wherever these lie.
int64_t whole_rows_with(const LinearCall& call, int part) {
  if (call.epilogue == Epilogue::kGated) return 2 * call.parts[0].w.whole_rows();
  int64_t rows = 0;
  for (int i = 0; i < call.count; ++i) {
    const bool together =
        i == part || (call.parts[i].bias == nullptr && call.parts[part].bias == nullptr);
    if (together) rows += call.parts[i].w.whole_rows();
  }
  return rows;
}

Product product_of(CublasLt& library, const LinearCall& call, int part, int64_t n, Activations out,
                   bool with_epilogue, size_t workspace_bytes) {
  const LinearPart& first = call.parts[part];
  Product p;
  p.w = first.w.data;
  p.out = out;
  LibraryShape& s = p.shape;
  s.n = n, s.whole_n = whole_rows_with(call, part);
  s.k = first.w.cols, s.tokens = call.x.rows;
  s.x_stride = call.x.stride, s.out_stride = out.stride;
  s.dtype = first.w.dtype, s.out_type = out.dtype;
  s.accumulate = call.epilogue == Epilogue::kAccumulate;
  s.workspace_bytes = workspace_bytes;
  const auto address = [](const void* pointer) { return reinterpret_cast<uintptr_t>(pointer); };
  s.alignment = alignment_of({address(p.w), address(call.x.data), address(out.data)});
  if (!with_epilogue) return p;
  const bool activate = call.epilogue == Epilogue::kActivate;
  s.bias = first.bias != nullptr;
  s.relu = activate && call.activation == ActivationKind::kRelu;
  p.bias = first.bias;
  p.activate_after = activate && !s.relu;
  if ((s.bias || s.relu) && library.choices(s) == 0) {
    s.bias = s.relu = false;
    p.bias = nullptr, p.bias_after = first.bias;
    p.activate_after = activate;
  }
  return p;
}

// Returns whether part i + 1 begins where part i ends, in weights and outputs, and one product can
// compute both.
bool continues(const LinearCall& call, int i, bool outputs) {
  const LinearPart &a = call.parts[i], &b = call.parts[i + 1];
  return b.w.rows > 0 && a.w.data + a.w.bytes() == b.w.data && a.bias == nullptr &&
         b.bias == nullptr &&
         (!outputs || a.out.data + row_bytes(a.out.dtype, a.out.cols) == b.out.data);
}

struct Products {
  std::array<Product, 3> product;
  int count = 0;
  Activations both;  // gated: gate and up before they are combined
  Workspace workspace;
};

Products products_of(CublasLt& library, const LinearCall& call, const LinearScratch& scratch) {
  Products all;
  if (call.epilogue == Epilogue::kGated) {
    const LinearPart& gate = call.parts[0];
    const int64_t n = gate.w.rows, tokens = call.x.rows;
    const DType type = gate.w.dtype;
    all.both = {type, tokens, 2 * n, 2 * n, scratch.data + kScratchCounterBytes};
    const auto used = static_cast<size_t>((row_bytes(type, 2 * n * tokens) + 255) / 256 * 256);
    SPW_ASSERT(scratch.bytes >= kScratchCounterBytes + used);
    all.workspace = workspace_of(scratch, used);
    const size_t workspace = all.workspace.bytes;
    if (gate.w.data + gate.w.bytes() == call.parts[1].w.data) {
      all.product[0] = product_of(library, call, 0, 2 * n, all.both, false, workspace);
      all.count = 1;
    } else {
      for (int i = 0; i < 2; ++i) {
        all.product[static_cast<size_t>(i)] =
            product_of(library, call, i, n, all.both.columns(i * n, n), false, workspace);
      }
      all.count = 2;
    }
    return all;
  }
  all.workspace = workspace_of(scratch, 0);
  const size_t workspace = all.workspace.bytes;
  for (int i = 0; i < call.count;) {
    if (call.parts[i].w.rows == 0) {
      ++i;
      continue;
    }
    Activations out = call.parts[i].out;
    int64_t n = call.parts[i].w.rows;
    int next = i + 1;
    while (next < call.count && continues(call, next - 1, true)) {
      n += call.parts[next].w.rows;
      ++next;
    }
    out.cols = n;
    all.product[static_cast<size_t>(all.count++)] =
        product_of(library, call, i, n, out, true, workspace);
    i = next;
  }
  return all;
}

}  // namespace

bool library_takes(const LinearCall& call) {
  for (int i = 0; i < call.count; ++i) {
    const LinearPart& part = call.parts[i];
    if (part.out.dtype != DType::kF32 && part.out.dtype != part.w.dtype) return false;
  }
  return true;
}

size_t library_scratch_bytes(const LinearCall& call) {
  size_t bytes = kScratchCounterBytes + kLibraryWorkspaceBytes;
  if (call.epilogue == Epilogue::kGated) {
    const LinearPart& gate = call.parts[0];
    bytes += static_cast<size_t>(row_bytes(gate.w.dtype, 2 * gate.w.rows * call.x.rows)) + 256;
  }
  return bytes;
}

void linear_library(CublasLt& library, const LinearCall& call, const LinearScratch& scratch,
                    cudaStream_t stream) {
  if (call.x.rows == 0) return;
  const Products all = products_of(library, call, scratch);
  for (int i = 0; i < all.count; ++i) {
    const Product& p = all.product[static_cast<size_t>(i)];
    library.matmul(p.shape, p.w, call.x.data, p.bias, p.out.data, all.workspace.data, stream);
    if (p.bias_after != nullptr || p.activate_after) {
      finish_rows(p.out, p.bias_after, p.activate_after, call.activation, stream);
    }
  }
  if (call.epilogue == Epilogue::kGated) {
    finish_gated_rows(all.both, call.parts[0].bias, call.parts[1].bias, call.activation,
                      call.parts[0].out, stream);
  }
}

void tune_library(CublasLt& library, std::span<const LinearCall> calls,
                  const LinearScratch& scratch, cudaStream_t stream) {
  SPW_ASSERT(!calls.empty());
  cudaEvent_t begin = nullptr, end = nullptr;
  SPW_CUDA_CHECK(cudaEventCreate(&begin));
  SPW_CUDA_CHECK(cudaEventCreate(&end));
  const Products products = products_of(library, calls[0], scratch);
  for (int i = 0; i < products.count; ++i) {
    const LibraryShape& shape = products.product[static_cast<size_t>(i)].shape;
    int best = 0;
    float best_ms = 0;
    for (int choice = 0; choice < library.choices(shape); ++choice) {
      library.choose(shape, choice);
      float ms = 0;
      for (int round = 0; round < 2; ++round) {  // the first round warms up
        SPW_CUDA_CHECK(cudaEventRecord(begin, stream));
        for (const LinearCall& call : calls) {
          const Products these = products_of(library, call, scratch);
          const Product& p = these.product[static_cast<size_t>(i)];
          library.matmul(shape, p.w, call.x.data, p.bias, p.out.data, these.workspace.data, stream);
        }
        SPW_CUDA_CHECK(cudaEventRecord(end, stream));
        SPW_CUDA_CHECK(cudaEventSynchronize(end));
        SPW_CUDA_CHECK(cudaEventElapsedTime(&ms, begin, end));
      }
      if (choice == 0 || ms < best_ms) best = choice, best_ms = ms;
    }
    if (library.choices(shape) > 0) library.choose(shape, best);
  }
  SPW_CUDA_CHECK(cudaEventDestroy(begin));
  SPW_CUDA_CHECK(cudaEventDestroy(end));
}

}  // namespace spillway::cuda
