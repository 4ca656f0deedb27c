// SPDX-License-Identifier: Apache-2.0
#include "memory/block_folder_room.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <vector>

#include "base/byte_units.h"
#include "base/error.h"
#include "base/file_descriptor.h"
#include "base/log.h"
#include "base/printable.h"
#include "storage/io_calls.h"

namespace spillway {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "kv-";
constexpr const char* kFiles[] = {"blocks", "index", "lock"};

struct Found {
  fs::path path;
  uint64_t bytes = 0;
  fs::file_time_type used = {};
};

bool is_one_of_ours(const fs::directory_entry& entry) {
  const std::string name = entry.path().filename().native();
  const auto is_digit = [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); };
  std::error_code error;
  return name.starts_with(kPrefix) && name.size() == kPrefix.size() + 32 &&
         std::all_of(name.begin() + kPrefix.size(), name.end(), is_digit) &&
         fs::is_directory(entry.symlink_status(error)) &&
         fs::is_regular_file(entry.path() / "index", error);
}

// The bytes on disk are fewer than the files' lengths, because evicted blocks leave holes.
uint64_t allocated_bytes(const fs::path& folder) {
  constexpr uint64_t kStatUnit = 512;  // the unit of st_blocks, on any file system
  uint64_t bytes = 0;
  for (const char* const file : kFiles) {
    struct stat info {};
    if (::stat((folder / file).c_str(), &info) == 0 && S_ISREG(info.st_mode))
      bytes += static_cast<uint64_t>(info.st_blocks) * kStatUnit;
  }
  return bytes;
}

// Holds the folder's lock, so that no process can begin to use it meanwhile.
bool try_remove(const fs::path& folder) {
  const FileDescriptor lock =
      open_call(folder / "lock", O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (!lock.is_open() || ::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) return false;
  std::error_code error;
  for (const char* const file : kFiles) fs::remove(folder / file, error);
  return fs::remove(folder, error);  // false if it contains anything else
}

}  // namespace

std::string folder_name(const FolderIdentity& identity) {
  const BlockName name =
      name_of(fmt::format("{} {} {}", identity.salt.low, identity.salt.high, identity.block_bytes));
  return fmt::format("{}{:016x}{:016x}", kPrefix, name.high, name.low);
}

void make_private_folder(const fs::path& path) {
  std::error_code error;
  if (::mkdir(path.c_str(), 0700) == 0) return;
  const int why = errno;
  SPW_CHECK(why == EEXIST || why == EISDIR || fs::is_directory(path, error), kInvalidArgument,
            "--kv-dir: cannot make the folder {}: {}", printable_path(path), error_text(-why));
  SPW_CHECK(fs::is_directory(path, error), kInvalidArgument,
            "--kv-dir: {} is not a folder; give another name", printable_path(path));
}

uint64_t block_folders_bytes(const fs::path& dir) {
  uint64_t bytes = 0;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(dir, error)) {
    if (is_one_of_ours(entry)) bytes += allocated_bytes(entry.path());
  }
  return bytes;
}

void warn_if_none_fits(const fs::path& dir, const std::vector<fs::path>& own) {
  std::error_code error;
  int others = 0;
  for (const fs::directory_entry& entry : fs::directory_iterator(dir, error)) {
    if (std::ranges::count(own, entry.path()) > 0) return;
    if (is_one_of_ours(entry)) ++others;
  }
  if (others == 0) return;
  log_warning(
      "--kv-dir: the KV in {} is of other models, groups of layers or settings ({} {}); this "
      "run begins with none",
      printable_path(dir), others, others == 1 ? "folder" : "folders");
}

uint64_t remove_unused_folders(const fs::path& dir, const std::vector<fs::path>& own,
                               uint64_t most) {
  std::error_code error;
  std::vector<Found> others;
  uint64_t bytes = 0;
  for (const fs::directory_entry& entry : fs::directory_iterator(dir, error)) {
    if (std::ranges::count(own, entry.path()) > 0 || !is_one_of_ours(entry)) continue;
    Found& found = others.emplace_back(Found{.path = entry.path()});
    found.bytes = allocated_bytes(entry.path());
    found.used = fs::last_write_time(entry.path() / "index", error);
    bytes += found.bytes;
  }
  std::ranges::sort(others, {}, &Found::used);
  for (const Found& found : others) {
    if (bytes <= most) break;
    if (!try_remove(found.path)) continue;
    bytes -= found.bytes;
    log_info("--kv-dir: removed {}, KV of another model or other settings ({})",
             printable_path(found.path), format_bytes(found.bytes));
  }
  return bytes;
}

}  // namespace spillway
