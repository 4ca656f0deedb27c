// SPDX-License-Identifier: Apache-2.0
#include "storage/zip_directory.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <optional>
#include <span>
#include <utility>

#include "base/checked_math.h"
#include "base/error.h"
#include "base/printable.h"
#include "storage/byte_cursor.h"

namespace spillway {
namespace {

constexpr uint32_t kLocalSignature = 0x04034b50;       // "PK\3\4"
constexpr uint32_t kMemberSignature = 0x02014b50;      // "PK\1\2"
constexpr uint32_t kEndSignature = 0x06054b50;         // "PK\5\6"
constexpr uint32_t kZip64EndSignature = 0x06064b50;    // "PK\6\6"
constexpr uint32_t kZip64PlaceSignature = 0x07064b50;  // "PK\6\7"
constexpr uint64_t kLocalBytes = 30;
constexpr uint64_t kMemberBytes = 46;
constexpr uint64_t kEndBytes = 22;
constexpr uint64_t kZip64EndBytes = 56;
constexpr uint64_t kZip64PlaceBytes = 20;
constexpr uint16_t kZip64Extra = 0x0001;
constexpr uint16_t kStored = 0;
constexpr uint16_t kEncrypted = 0x0001;
// The bits of `flags` that change nothing for stored members: how hard a compressor tried, that
// sizes stand behind the bytes, too, and that names are UTF-8.
constexpr uint16_t kHarmlessFlags = 0x0006 | 0x0008 | 0x0800;

// Where a field of 16 or 32 bits has all bits set, the real value is in a field of 64 bits.
template <class T>
bool is_saturated(T field) {
  return field == std::numeric_limits<T>::max();
}

class ZipParser {
 public:
  explicit ZipParser(const ByteSource& source) : source_(source), cursor_(source) {}

  std::vector<ZipMember> parse() {
    find_directory();
    SPW_CHECK(count_ <= ZipDirectory::kMaxMembers && count_ <= bytes_ / kMemberBytes,
              kInvalidArgument,
              "{}: the archive's directory of {} bytes says that it has {} members; at most {} are "
              "allowed, of at least {} bytes each",
              source_.label(), bytes_, count_, ZipDirectory::kMaxMembers, kMemberBytes);
    members_.reserve(count_);
    cursor_.seek(begin_);
    for (uint64_t i = 0; i < count_; ++i) parse_member(i);
    cursor_.set_context({});
    if (cursor_.position() != begin_ + bytes_) damaged("the archive's directory has another size");
    place_members();
    check_names();
    return std::move(members_);
  }

 private:
  [[noreturn]] void damaged(std::string_view what) const {
    fail(ErrorCode::kInvalidArgument,
         "{}{} at byte {}; the file is truncated or damaged, download it again", cursor_.prefix(),
         what, cursor_.position());
  }

  // Sets count_, bytes_ and begin_. The directory, what zip64 adds to it, and its end record are
  // the last things in the file, one directly after the other.
  void find_directory() {
    if (source_.size() < kEndBytes) damaged("the end of a zip archive is missing");
    const uint64_t end_at = source_.size() - kEndBytes;
    cursor_.seek(end_at);
    if (cursor_.read<uint32_t>("end record") != kEndSignature) {
      cursor_.seek(end_at);
      damaged("the end record of a zip archive is missing");
    }
    const auto disk = cursor_.read<uint16_t>("disk");
    const auto first_disk = cursor_.read<uint16_t>("disk");
    const auto count_here = cursor_.read<uint16_t>("member count");
    const auto count = cursor_.read<uint16_t>("member count");
    const auto bytes = cursor_.read<uint32_t>("directory size");
    const auto begin = cursor_.read<uint32_t>("directory offset");
    const auto comment = cursor_.read<uint16_t>("comment length");
    if (comment != 0) damaged("a comment that the file has no bytes for");
    const bool in_zip64 = is_saturated(count) || is_saturated(bytes) || is_saturated(begin);
    count_ = count;
    bytes_ = bytes;
    begin_ = begin;
    uint64_t directory_end = end_at;
    if (const auto zip64_at = read_zip64_end(end_at)) {
      directory_end = *zip64_at;
      const bool agrees = (is_saturated(count) || count == count_) &&
                          (is_saturated(bytes) || bytes == bytes_) &&
                          (is_saturated(begin) || begin == begin_);
      if (!agrees) damaged("end records that disagree");
    } else {
      if (in_zip64) damaged("no zip64 end record before the end record");
      check_one_file(disk == 0 && first_disk == 0 && count_here == count);
    }
    const auto end = try_add(begin_, bytes_);
    if (!end || *end != directory_end) damaged("a directory that does not end where it should");
  }

  void check_one_file(bool is_one) const {
    SPW_CHECK(is_one, kUnsupported, "{}: one part of a zip archive of several files",
              source_.label());
  }

  // Reads the end record of 64 bits, if there is one, and returns where it begins.
  std::optional<uint64_t> read_zip64_end(uint64_t end_at) {
    if (end_at < kZip64PlaceBytes + kZip64EndBytes) return std::nullopt;
    const uint64_t place_at = end_at - kZip64PlaceBytes;
    cursor_.seek(place_at);
    if (cursor_.read<uint32_t>("zip64 locator") != kZip64PlaceSignature) return std::nullopt;
    const auto disk = cursor_.read<uint32_t>("zip64 disk");
    const auto zip64_at = cursor_.read<uint64_t>("zip64 end record's offset");
    const auto disks = cursor_.read<uint32_t>("zip64 disk count");
    check_one_file(disk == 0 && disks <= 1);
    if (zip64_at != place_at - kZip64EndBytes) damaged("a zip64 end record in another place");
    cursor_.seek(zip64_at);
    if (cursor_.read<uint32_t>("zip64 end record") != kZip64EndSignature)
      damaged("no zip64 end record");
    if (cursor_.read<uint64_t>("zip64 end record's size") != kZip64EndBytes - 12)
      damaged("a zip64 end record of another size");
    cursor_.skip(4, "zip64 versions");
    const auto this_disk = cursor_.read<uint32_t>("zip64 disk");
    const auto first_disk = cursor_.read<uint32_t>("zip64 disk");
    const auto count_here = cursor_.read<uint64_t>("zip64 member count");
    count_ = cursor_.read<uint64_t>("zip64 member count");
    bytes_ = cursor_.read<uint64_t>("zip64 directory size");
    begin_ = cursor_.read<uint64_t>("zip64 directory offset");
    check_one_file(this_disk == 0 && first_disk == 0 && count_here == count_);
    return zip64_at;
  }

  void parse_member(uint64_t number) {
    cursor_.set_context(fmt::format("member {}", number));
    if (cursor_.read<uint32_t>("signature") != kMemberSignature) damaged("no directory entry");
    cursor_.skip(4, "versions");
    const auto flags = cursor_.read<uint16_t>("flags");
    const auto method = cursor_.read<uint16_t>("method");
    cursor_.skip(8, "time and checksum");
    const auto packed = cursor_.read<uint32_t>("packed size");
    const auto bytes = cursor_.read<uint32_t>("size");
    const auto name_bytes = cursor_.read<uint16_t>("name length");
    const auto extra_bytes = cursor_.read<uint16_t>("extra length");
    const auto comment_bytes = cursor_.read<uint16_t>("comment length");
    const auto disk = cursor_.read<uint16_t>("disk");
    cursor_.skip(6, "attributes");
    const auto header = cursor_.read<uint32_t>("local header's offset");
    check_one_file(disk == 0);
    if (name_bytes == 0 || name_bytes > ZipDirectory::kMaxMemberNameBytes)
      damaged(fmt::format("a name of {} bytes", name_bytes));

    ZipMember member;
    member.name.resize(name_bytes);
    cursor_.read_bytes(std::as_writable_bytes(std::span(member.name)), "name");
    cursor_.set_context(fmt::format("member '{}'", printable(member.name)));
    check_storage(flags, method);
    uint64_t packed_bytes = packed;
    member.bytes = bytes;
    member.header = header;
    // The fields of 64 bits stand in this order, each only where the short one is saturated.
    std::vector<uint64_t*> wide;
    if (is_saturated(bytes)) wide.push_back(&member.bytes);
    if (is_saturated(packed)) wide.push_back(&packed_bytes);
    if (is_saturated(header)) wide.push_back(&member.header);
    parse_extra(extra_bytes, wide);
    cursor_.skip(comment_bytes, "comment");
    if (packed_bytes != member.bytes)
      damaged(fmt::format("a size of {} and a packed size of {}", member.bytes, packed_bytes));
    members_.push_back(std::move(member));
  }

  void check_storage(uint16_t flags, uint16_t method) const {
    SPW_CHECK((flags & kEncrypted) == 0, kUnsupported, "{}it is encrypted", cursor_.prefix());
    SPW_CHECK(method == kStored, kUnsupported,
              "{}it is compressed (method {}), which torch.save never does; save the weights again "
              "with torch, or convert them to safetensors",
              cursor_.prefix(), method);
    SPW_CHECK((flags & ~kHarmlessFlags) == 0, kUnsupported, "{}its flags {:#06x} are not supported",
              cursor_.prefix(), flags);
  }

  // Reads the numbers of the zip64 field to where `wide` points, and skips all other fields.
  void parse_extra(uint16_t extra_bytes, std::span<uint64_t* const> wide) {
    const uint64_t end = cursor_.position() + extra_bytes;
    while (cursor_.position() + 4 <= end) {
      const auto id = cursor_.read<uint16_t>("extra field");
      const auto field_bytes = cursor_.read<uint16_t>("extra field's length");
      const uint64_t field_end = cursor_.position() + field_bytes;
      if (field_end > end) damaged("an extra field that is too long");
      if (id == kZip64Extra) {
        if (field_bytes < wide.size() * sizeof(uint64_t))
          damaged("a zip64 field that is too short");
        for (uint64_t* value : wide) *value = cursor_.read<uint64_t>("zip64 field");
        wide = {};
      }
      cursor_.skip(field_end - cursor_.position(), "extra field");
    }
    if (!wide.empty()) damaged("a large size or offset without a zip64 field");
    cursor_.skip(end - cursor_.position(), "extra fields");
  }

  // Finds each member's bytes behind its local header, whose name is as long as that of the
  // directory, but whose extra fields differ: torch pads with them.
  void place_members() {
    std::ranges::sort(members_, {}, &ZipMember::header);
    uint64_t free_from = 0;
    std::string local;
    for (ZipMember& member : members_) {
      const std::string prefix =
          fmt::format("{}: member '{}': ", source_.label(), printable(member.name));
      SPW_CHECK(member.header >= free_from, kInvalidArgument,
                "{}its header at byte {} lies inside another member, which ends at byte {}", prefix,
                member.header, free_from);
      const uint64_t fixed = kLocalBytes + member.name.size();
      check_inside(prefix, member.header, fixed);
      local.resize(fixed);
      source_.read_exact(member.header, std::as_writable_bytes(std::span(local)));
      const auto field = [&](size_t at) {
        uint16_t value = 0;
        std::memcpy(&value, local.data() + at, sizeof(value));
        return value;
      };
      uint32_t signature = 0;
      std::memcpy(&signature, local.data(), sizeof(signature));
      const bool agrees = signature == kLocalSignature && field(8) == kStored &&
                          field(26) == member.name.size() &&
                          std::string_view(local).substr(kLocalBytes) == member.name;
      SPW_CHECK(agrees, kInvalidArgument,
                "{}no header of it at byte {}; the file is damaged, download it again", prefix,
                member.header);
      member.offset = member.header + fixed + field(28);
      check_inside(prefix, member.offset, member.bytes);
      free_from = member.offset + member.bytes;
    }
  }

  void check_inside(const std::string& prefix, uint64_t offset, uint64_t bytes) const {
    const auto end = try_add(offset, bytes);
    SPW_CHECK(end && *end <= begin_, kInvalidArgument,
              "{}{} bytes at byte {} reach into the archive's directory at byte {}; the file is "
              "damaged, download it again",
              prefix, bytes, offset, begin_);
  }

  void check_names() {
    std::ranges::sort(members_, {}, &ZipMember::name);
    const auto twice = std::ranges::adjacent_find(members_, {}, &ZipMember::name);
    SPW_CHECK(twice == members_.end(), kInvalidArgument, "{}: member '{}' is there twice",
              source_.label(), printable(twice->name));
  }

  const ByteSource& source_;
  ByteCursor cursor_;
  uint64_t count_ = 0;
  uint64_t bytes_ = 0;  // the directory's size
  uint64_t begin_ = 0;  // where the directory begins
  std::vector<ZipMember> members_;
};

}  // namespace

ZipDirectory::ZipDirectory(const ByteSource& source) : members_(ZipParser(source).parse()) {}

const ZipMember* ZipDirectory::find(std::string_view name) const {
  const auto it = std::ranges::lower_bound(
      members_, name, {}, [](const ZipMember& member) { return std::string_view(member.name); });
  return it == members_.end() || it->name != name ? nullptr : &*it;
}

}  // namespace spillway
