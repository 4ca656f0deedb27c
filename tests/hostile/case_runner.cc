// SPDX-License-Identifier: Apache-2.0
#include "tests/hostile/case_runner.h"

#include <fmt/core.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <ctime>
#include <new>
#include <optional>
#include <system_error>

#include "base/error.h"
#include "engine/vocabulary_from_files.h"
#include "model/model.h"
#include "text/tokenizer.h"

namespace {

std::atomic<int64_t> g_live_bytes{0};
std::atomic<int64_t> g_peak_bytes{0};

void* counted_alloc(size_t bytes) {
  void* p = std::malloc(bytes);
  if (p == nullptr) throw std::bad_alloc();
  const auto size = static_cast<int64_t>(malloc_usable_size(p));
  const int64_t live = g_live_bytes.fetch_add(size) + size;
  if (live > g_peak_bytes.load()) g_peak_bytes.store(live);
  return p;
}

void counted_free(void* p) noexcept {
  if (p != nullptr) g_live_bytes.fetch_sub(static_cast<int64_t>(malloc_usable_size(p)));
  std::free(p);
}

}  // namespace

void* operator new(size_t bytes) { return counted_alloc(bytes); }
void* operator new[](size_t bytes) { return counted_alloc(bytes); }
void operator delete(void* p) noexcept { counted_free(p); }
void operator delete[](void* p) noexcept { counted_free(p); }
void operator delete(void* p, size_t) noexcept { counted_free(p); }
void operator delete[](void* p, size_t) noexcept { counted_free(p); }

namespace spillway {
namespace {

// Returns what is wrong with the model, or an empty text.
std::string fault_of(const ModelFiles& model) {
  for (const std::string_view key : model.metadata.keys()) {
    const std::string text = model.metadata.describe(key);
    if (text.find('\n') != std::string::npos) return "a description of several lines";
  }
  for (const TensorInfo& tensor : model.tensors) {
    const uint64_t size = model.file_bytes.at(static_cast<size_t>(tensor.extent.file));
    if (tensor.extent.offset > size || tensor.extent.bytes > size - tensor.extent.offset)
      return "an extent past the file";
    const auto bytes = tensor.rows() * row_bytes(tensor.dtype, tensor.cols());
    if (tensor.elements() < 1 || static_cast<uint64_t>(bytes) != tensor.extent.bytes)
      return "an extent of the wrong size";
    if (model.find(tensor.name) != &tensor) return "a tensor that find() does not find";
  }
  return {};
}

// Returns processor time, since wall time depends on what else the machine does.
double processor_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

bool is_one_line(const std::string& text) {
  return !text.empty() && text.size() < 2000 &&
         std::ranges::none_of(text, [](unsigned char c) { return c < 0x20 || c == 0x7f; });
}

// Returns whether `fn` works. If it throws something that it must not, `fault` says so.
template <class Fn>
bool works(Fn&& fn, std::string& fault) {
  try {
    fn();
    return true;
  } catch (const Error& error) {
    if (!is_one_line(error.what())) fault = fmt::format("the message '{}'", error.what());
    if (error.code() == ErrorCode::kInternal) fault = error.what();
  } catch (const std::exception& error) {
    fault = fmt::format("another exception: {}", error.what());
  }
  return false;
}

void use_tokenizer(const ModelFiles& model, std::string& fault) {
  const Tokenizer tokenizer(vocabulary_from_files(model));
  const auto ids = tokenizer.encode("ab a\xC3\xA9<e> 12\xFF", {.parse_special = true});
  const auto tokens = static_cast<TokenId>(tokenizer.vocabulary().tokens.size());
  if (std::ranges::any_of(ids, [&](TokenId id) { return id < 0 || id >= tokens; }))
    fault = "an id outside the vocabulary";
  tokenizer.decode(ids);
}

}  // namespace

void CaseRunner::run(uint64_t input_bytes, const std::function<ModelFiles()>& read,
                     const std::function<std::string()>& describe) {
  ++cases_;
  const int64_t live_before = g_live_bytes.load();
  g_peak_bytes.store(live_before);
  const double start = processor_seconds();
  std::string fault;
  std::optional<ModelFiles> model;
  if (works([&] { model = read(); }, fault)) {
    ++accepted_;
    fault = fault_of(*model);
    if (works([&] { describe_model(*model); }, fault)) ++described_;
    if (works([&] { use_tokenizer(*model, fault); }, fault)) ++tokenized_;
    model.reset();
  }
  const double seconds = processor_seconds() - start;
  const auto peak = static_cast<uint64_t>(g_peak_bytes.load() - live_before);
  peak_bytes_ = std::max(peak_bytes_, peak);
  slowest_seconds_ = std::max(slowest_seconds_, seconds);
  EXPECT_EQ(fault, "") << describe();
  EXPECT_LE(peak, input_bytes + kSlackBytes) << describe();
  EXPECT_LT(seconds, kMaxSeconds) << describe();
}

std::string CaseRunner::summary() const {
  return fmt::format(
      "{} cases, {} accepted, {} described, {} tokenized, peak {:.2f} MB, slowest {:.2f} ms",
      cases_, accepted_, described_, tokenized_, static_cast<double>(peak_bytes_) / 1e6,
      slowest_seconds_ * 1e3);
}

std::filesystem::path memory_folder() {
  const std::filesystem::path shared_memory = "/dev/shm";
  std::error_code ignored;
  return std::filesystem::is_directory(shared_memory, ignored)
             ? shared_memory
             : std::filesystem::temp_directory_path();
}

void each_truncation(const Bytes& bytes, size_t header_bytes, const Visit& visit) {
  for (size_t n = 0; n < header_bytes; ++n) {
    const Bytes mutant(bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(n));
    visit(mutant, [&] { return fmt::format("cut to {} bytes", n); });
  }
}

void each_bit_flip(const Bytes& bytes, size_t header_bytes, const Visit& visit) {
  Bytes mutant = bytes;
  for (size_t bit = 0; bit < header_bytes * 8; ++bit) {
    if (kSanitized && bit % 8 != (bit / 8) * 5 % 8) continue;
    const auto mask = static_cast<std::byte>(1u << (bit % 8));
    mutant[bit / 8] ^= mask;
    visit(mutant, [&] { return fmt::format("bit {} of byte {} flipped", bit % 8, bit / 8); });
    mutant[bit / 8] ^= mask;
  }
}

void random_damage(const Bytes& bytes, size_t header_bytes, int count, uint64_t seed,
                   const Visit& visit) {
  const auto header = static_cast<ptrdiff_t>(std::min(header_bytes, bytes.size()));
  for (int i = 0; i < count; ++i) {
    std::mt19937_64 random(seed + static_cast<uint64_t>(i));
    const auto below = [&](ptrdiff_t n) {
      return static_cast<ptrdiff_t>(random() % static_cast<uint64_t>(n));
    };
    Bytes mutant = bytes;
    const auto kind = below(4);
    const ptrdiff_t at = below(header);
    const ptrdiff_t length = 1 + below(std::min<ptrdiff_t>(64, header - at));
    const auto begin = mutant.begin() + at;
    if (kind == 0) {
      for (ptrdiff_t n = 1 + below(8); n > 0; --n)
        mutant[static_cast<size_t>(below(header))] = static_cast<std::byte>(random());
    } else if (kind == 1) {
      mutant.erase(begin, begin + length);
    } else if (kind == 2) {
      const Bytes part(begin, begin + length);
      mutant.insert(mutant.begin() + below(header), part.begin(), part.end());
    } else {
      std::copy(begin, begin + length, mutant.begin() + below(header - length + 1));
    }
    visit(mutant, [&] { return fmt::format("random damage {} (kind {})", seed + i, kind); });
  }
}

}  // namespace spillway
