// SPDX-License-Identifier: Apache-2.0
#include "storage/torch_reader.h"

#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/checked_math.h"
#include "base/error.h"
#include "base/printable.h"
#include "storage/pickle_reader.h"
#include "storage/tensor_layout.h"
#include "storage/zip_directory.h"

namespace spillway {
namespace {

constexpr std::string_view kPickleMember = "/data.pkl";
constexpr uint64_t kMaxPickleMemberBytes = uint64_t{64} << 20;
constexpr uint64_t kMaxByteOrderBytes = 16;
constexpr size_t kMaxTorchNameBytes = 1024;
constexpr std::string_view kZipBegin("PK\3\4", 4);
// Files of torch.save() before 1.6 begin with the pickle of the number 0x1950a86a20f9469cfc6c.
constexpr std::string_view kLegacyBegin("\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19",
                                        14);

std::string read_member(const ByteSource& source, const ZipMember& member, uint64_t max_bytes) {
  SPW_CHECK(member.bytes <= max_bytes, kInvalidArgument, "{}: member '{}' has {} bytes, over {}",
            source.label(), printable(member.name), member.bytes, max_bytes);
  std::string text(member.bytes, '\0');
  source.read_exact(member.offset, std::as_writable_bytes(std::span(text)));
  return text;
}

void check_begin(const ByteSource& source) {
  std::string begin(std::min<uint64_t>(source.size(), kLegacyBegin.size()), '\0');
  source.read_exact(0, std::as_writable_bytes(std::span(begin)));
  SPW_CHECK(begin != kLegacyBegin, kUnsupported,
            "{}: torch wrote it in its format before 1.6; load it in Python with "
            "torch.load(FILE, weights_only=True) and save what you get anew with torch.save(), or "
            "convert the folder to safetensors",
            source.label());
  SPW_CHECK(begin.starts_with(kZipBegin), kInvalidArgument,
            "{}: no file of torch.save(): it does not begin as a zip archive; download it again",
            source.label());
}

// All members are in one folder, named after the file that was saved. Returns it.
std::string_view archive_name(const ByteSource& source, const ZipDirectory& zip) {
  std::string_view found;
  for (const ZipMember& member : zip.members()) {
    std::string_view name = member.name;
    if (!name.ends_with(kPickleMember)) continue;
    name.remove_suffix(kPickleMember.size());
    if (name.find('/') != std::string_view::npos) continue;
    SPW_CHECK(found.empty(), kInvalidArgument, "{}: data.pkl is in two folders of the archive",
              source.label());
    found = name;
  }
  SPW_CHECK(!found.empty(), kInvalidArgument,
            "{}: no file of torch.save(): the archive has no data.pkl", source.label());
  return found;
}

void check_byte_order(const ByteSource& source, const ZipDirectory& zip,
                      const std::string& archive) {
  const ZipMember* const member = zip.find(archive + "/byteorder");
  if (member == nullptr) return;  // torch before 2.1
  const std::string order = read_member(source, *member, kMaxByteOrderBytes);
  SPW_CHECK(order == "little", kUnsupported,
            "{}: its byte order is '{}', only 'little' is supported; convert the folder to "
            "safetensors",
            source.label(), printable(order));
}

// Finds the bytes of the tensors that the pickle describes.
class TorchTensors {
 public:
  TorchTensors(const ByteSource& source, const ZipDirectory& zip, const std::string& archive,
               int32_t file, ModelFiles& model)
      : source_(source), zip_(zip), storages_(archive + "/data/"), file_(file), model_(model) {}

  void add(const PickledTensor& tensor) {
    SPW_CHECK(!tensor.name.empty() && tensor.name.size() <= kMaxTorchNameBytes, kInvalidArgument,
              "{}: tensor '{}' has a name of {} bytes, expected 1 to {}", source_.label(),
              printable(tensor.name, 40), tensor.name.size(), kMaxTorchNameBytes);
    SPW_CHECK(model_.tensors.size() + model_.unsupported.size() < ModelFiles::kMaxTensors,
              kInvalidArgument, "{}: more than {} tensors", source_.label(),
              ModelFiles::kMaxTensors);
    const std::string prefix =
        fmt::format("{}: tensor '{}': ", source_.label(), printable(tensor.name));
    const TorchStorageType& type = *tensor.storage_type;
    const ZipMember& storage = storage_of(prefix, tensor);
    const std::optional<DType> dtype = try_plain_dtype(type.type);
    const bool no_elements = std::ranges::find(tensor.shape, 0u) != tensor.shape.end();
    if (!no_elements) check_last_element(prefix, tensor);
    if (!dtype || no_elements) {
      model_.unsupported.push_back(
          {std::string(tensor.name),
           std::string(type.type) + (no_elements ? " without elements" : "")});
      return;
    }
    std::vector<int64_t> shape(tensor.shape.begin(), tensor.shape.end());
    const uint64_t bytes = checked_tensor_bytes(prefix, *dtype, shape);
    check_row_major(prefix, tensor, shape);
    const uint64_t offset = storage.offset + tensor.offset * type.element_bytes;
    model_.tensors.push_back(
        {std::string(tensor.name), *dtype, std::move(shape), {file_, offset, bytes}});
  }

 private:
  // Returns the member that has the tensor's storage.
  const ZipMember& storage_of(const std::string& prefix, const PickledTensor& tensor) const {
    const bool is_key = tensor.storage_key.size() <= ZipDirectory::kMaxMemberNameBytes;
    const ZipMember* const member =
        is_key ? zip_.find(storages_ + std::string(tensor.storage_key)) : nullptr;
    SPW_CHECK(member != nullptr, kInvalidArgument, "{}its storage '{}' is not in the archive",
              prefix, printable(tensor.storage_key));
    const auto bytes = try_mul(tensor.storage_elements, tensor.storage_type->element_bytes);
    SPW_CHECK(bytes && *bytes <= member->bytes, kInvalidArgument,
              "{}its storage of {} elements of {} does not fit the {} bytes of '{}'", prefix,
              tensor.storage_elements, tensor.storage_type->type, member->bytes,
              printable(member->name));
    return *member;
  }

  // Checks that no element is past the storage's end.
  static void check_last_element(const std::string& prefix, const PickledTensor& tensor) {
    std::optional<uint64_t> last = tensor.offset;
    for (size_t i = 0; i < tensor.shape.size() && last; ++i) {
      const auto step = try_mul(tensor.shape[i] - 1, tensor.strides[i]);
      last = step ? try_add(*last, *step) : std::nullopt;
    }
    SPW_CHECK(last && *last < tensor.storage_elements, kInvalidArgument,
              "{}it ends past the {} elements of its storage", prefix, tensor.storage_elements);
  }

  // Checks that the elements lie one after the other, the last dimension's first.
  static void check_row_major(const std::string& prefix, const PickledTensor& tensor,
                              const std::vector<int64_t>& shape) {
    uint64_t expected = 1;
    bool is_row_major = true;
    for (size_t i = shape.size(); i-- > 0;) {
      // The stride of a single element is never used.
      if (tensor.shape[i] != 1 && tensor.strides[i] != expected) is_row_major = false;
      expected *= tensor.shape[i];
    }
    const std::vector<int64_t> strides(tensor.strides.begin(), tensor.strides.end());
    SPW_CHECK(
        is_row_major, kUnsupported,
        "{}its elements are not stored in the order of its shape {} (strides {}); convert the "
        "folder to safetensors, where they are",
        prefix, format_shape(shape), format_shape(strides));
  }

  const ByteSource& source_;
  const ZipDirectory& zip_;
  std::string storages_;  // what the names of storages begin with
  int32_t file_;
  ModelFiles& model_;
};

}  // namespace

void parse_torch(const ByteSource& source, int32_t file, ModelFiles& model) {
  check_begin(source);
  const ZipDirectory zip(source);
  const std::string archive(archive_name(source, zip));
  check_byte_order(source, zip, archive);
  const ZipMember& pickle = *zip.find(archive + std::string(kPickleMember));
  TorchTensors tensors(source, zip, archive, file, model);
  read_state_dict(read_member(source, pickle, kMaxPickleMemberBytes), source.label(),
                  [&](const PickledTensor& tensor) { tensors.add(tensor); });
}

}  // namespace spillway
