// SPDX-License-Identifier: Apache-2.0
#include "predict/predictor_file.h"

#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <system_error>
#include <type_traits>

#include "base/digest.h"
#include "base/error.h"
#include "base/log.h"
#include "base/printable.h"
#include "storage/file.h"
#include "storage/file_writer.h"

namespace spillway {
namespace {

namespace fs = std::filesystem;

// The file has a readable first line, a line with the digest of all that follows, and then binary
// numbers in the byte order of memory.
constexpr std::string_view kFirstLine = "spillway length predictor 2\n";
constexpr size_t kDigestDigits = 32;
constexpr uint64_t kMaxBytes = uint64_t{64} << 20;
constexpr uint32_t kMaxName = 4096;
constexpr uint32_t kMaxMoreSlots = 65536;

template <class T>
void append(std::string& bytes, std::span<const T> values) {
  static_assert(std::is_trivially_copyable_v<T>);
  bytes.append(reinterpret_cast<const char*>(values.data()), values.size_bytes());
}
template <class T>
void append(std::string& bytes, const T& value) {
  append(bytes, std::span<const T>(&value, 1));
}
void append_name(std::string& bytes, std::string_view name) {
  const std::string_view kept = name.substr(0, kMaxName);
  append(bytes, static_cast<uint32_t>(kept.size()));
  bytes += kept;
}

// Reads numbers from the front of the file's bytes.
class Cursor {
 public:
  explicit Cursor(std::string_view bytes) : bytes_(bytes) {}

  std::string_view take(size_t count) {
    SPW_CHECK(count <= bytes_.size(), kInvalidArgument, "it ends {} bytes early",
              count - bytes_.size());
    const std::string_view taken = bytes_.substr(0, count);
    bytes_.remove_prefix(count);
    return taken;
  }
  template <class T>
  T number() {
    T value;
    std::memcpy(&value, take(sizeof value).data(), sizeof value);
    return value;
  }
  std::string name() {
    const auto size = number<uint32_t>();
    SPW_CHECK(size <= kMaxName, kInvalidArgument, "a name of {} bytes", size);
    return std::string(take(size));
  }
  std::vector<float> floats(size_t count) {
    std::vector<float> values(count);
    std::memcpy(values.data(), take(count * sizeof(float)).data(), count * sizeof(float));
    return values;
  }
  void expect_end() const {
    SPW_CHECK(bytes_.empty(), kInvalidArgument, "{} bytes too many", bytes_.size());
  }

 private:
  std::string_view bytes_;
};

StoredPredictor parse(std::string_view bytes) {
  SPW_CHECK(bytes.starts_with(kFirstLine), kInvalidArgument,
            "not a length predictor of this version");
  Cursor cursor(bytes.substr(kFirstLine.size()));
  const std::string_view digest = cursor.take(kDigestDigits);
  SPW_CHECK(cursor.take(1) == "\n", kInvalidArgument, "no digest");
  const std::string_view rest = bytes.substr(kFirstLine.size() + kDigestDigits + 1);
  SPW_CHECK(digest128(rest) == digest, kInvalidArgument, "damaged: its digest is another one");
  std::string model = cursor.name();
  EncoderMark encoder{.digest = cursor.name(), .folder = {}};
  encoder.folder = cursor.name();
  const auto more_slots = cursor.number<uint32_t>();
  SPW_CHECK(more_slots <= kMaxMoreSlots, kInvalidArgument, "{} more slots", more_slots);
  std::array<double, kLengthBuckets> edges{};
  for (double& edge : edges) edge = cursor.number<double>();
  const auto examples = cursor.number<uint64_t>();
  NgramPredictor predictor(LengthBuckets::from_edges(edges), more_slots);
  const std::vector<float> weights = cursor.floats(predictor.weights().size());
  const std::vector<float> gradients = cursor.floats(predictor.gradients().size());
  cursor.expect_end();
  predictor.restore(weights, gradients, examples);
  return {
      .predictor = std::move(predictor), .model = std::move(model), .encoder = std::move(encoder)};
}

}  // namespace

void write_predictor(const fs::path& path, const NgramPredictor& predictor,
                     const std::string& model, const EncoderMark& encoder) {
  std::string body;
  append_name(body, model);
  append_name(body, encoder.digest);
  append_name(body, encoder.folder.native());
  append(body, static_cast<uint32_t>(predictor.more_slots()));
  append(body, std::span<const double>(predictor.buckets().edges()));
  append(body, predictor.examples());
  append(body, predictor.weights());
  append(body, predictor.gradients());
  FileWriter file(path);
  file.write(kFirstLine);
  file.write(digest128(body) + "\n");
  file.write(body);
  file.commit();
}

bool NgramPredictor::try_write(const fs::path& path, const std::string& model) const {
  write_predictor(path, *this, model);
  return true;
}

std::optional<StoredPredictor> try_read_predictor(const fs::path& path) {
  std::error_code ignored;
  if (fs::status(path, ignored).type() == fs::file_type::not_found) return std::nullopt;
  try {
    return parse(read_text_file(path, kMaxBytes));
  } catch (const Error& error) {
    log_warning("{}: the length predictor is not used, a fresh one is: {}", printable_path(path),
                error.what());
    return std::nullopt;
  }
}

}  // namespace spillway
