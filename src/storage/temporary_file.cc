// SPDX-License-Identifier: Apache-2.0
#include "storage/temporary_file.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <charconv>
#include <ctime>
#include <fstream>
#include <mutex>
#include <optional>
#include <set>
#include <sstream>
#include <system_error>

#include "base/byte_units.h"
#include "base/error.h"
#include "base/log.h"
#include "base/printable.h"
#include "storage/io_calls.h"

namespace spillway {
namespace {

constexpr std::string_view kPrefix = "spillway-", kSuffix = ".tmp";
// Files of another boot, namespace or machine: between making one and locking it.
constexpr int64_t kForeignGraceSeconds = 60;

struct NameParts {
  int64_t pid;
  uint64_t start, instance;
};

template <class T>
bool take_number(std::string_view& text, T& value, int base, bool last) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  if (error != std::errc()) return false;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  if (last) return text.empty();
  if (!text.starts_with('-')) return false;
  text.remove_prefix(1);
  return true;
}

// Only what temporary_file_name() makes, to the letter.
std::optional<NameParts> parse_name(std::string_view name) {
  std::string_view rest = name;
  if (!rest.starts_with(kPrefix) || !rest.ends_with(kSuffix)) return std::nullopt;
  rest.remove_prefix(kPrefix.size());
  rest.remove_suffix(std::min(rest.size(), kSuffix.size()));
  const size_t dash = rest.find('-');
  if (dash == std::string_view::npos) return std::nullopt;
  const std::string_view label = rest.substr(0, dash);
  rest.remove_prefix(dash + 1);
  NameParts parts{};
  uint64_t number = 0;
  if (!take_number(rest, parts.pid, 10, false) || !take_number(rest, parts.start, 10, false) ||
      !take_number(rest, parts.instance, 16, false) || !take_number(rest, number, 10, true)) {
    return std::nullopt;
  }
  if (temporary_file_name(label, parts.pid, parts.start, parts.instance, number) != name) {
    return std::nullopt;
  }
  return parts;
}

bool process_has_ended(const NameParts& parts) {
  if (::kill(static_cast<pid_t>(parts.pid), 0) != 0 && errno == ESRCH) return true;
  const uint64_t start = process_start(parts.pid);
  return start != 0 && start != parts.start;  // another process has the number now
}

bool try_remove_dead(const std::filesystem::path& path, const NameParts& parts) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (fd < 0) return false;
  struct stat info {};
  bool dead = ::fstat(fd, &info) == 0 && S_ISREG(info.st_mode) && info.st_uid == ::geteuid();
  if (dead && parts.instance == process_instance()) {
    dead = process_has_ended(parts);
  } else if (dead) {
    dead = std::time(nullptr) - info.st_mtime > kForeignGraceSeconds;
  }
  // The owner's lock ends with it, wherever it runs.
  dead = dead && ::flock(fd, LOCK_EX | LOCK_NB) == 0;
  const bool removed = dead && ::unlink(path.c_str()) == 0;
  ::close(fd);
  return removed;
}

// Once for each folder: a process has many files.
void remove_dead_once(const std::filesystem::path& dir) {
  static std::mutex mutex;
  static std::set<std::filesystem::path> seen;
  {
    const std::lock_guard lock(mutex);
    if (!seen.insert(dir).second) return;
  }
  const int removed = remove_dead_temporary_files(dir);
  if (removed > 0) {
    log_info("removed {} temporary files that ended processes had left in {}", removed,
             printable_path(dir));
  }
}

int open_unnamed(const std::filesystem::path& dir) {
  int fd = 0;
  do {
    fd = open_call(dir, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  } while (fd == -EINTR);
  return fd;
}

int open_named(const TemporaryFileOptions& options, std::filesystem::path& name) {
  static std::atomic<uint64_t> counter{0};
  const int64_t pid = ::getpid();
  int fd = 0;
  do {
    name = options.dir / temporary_file_name(options.label, pid, process_start(pid),
                                             process_instance(), counter.fetch_add(1));
    fd = open_call(name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  } while (fd == -EINTR || fd == -EEXIST);
  if (fd >= 0) ::flock(fd, LOCK_EX | LOCK_NB);  // a file system without locks: the number decides
  return fd;
}

[[noreturn]] void fail_full(const TemporaryFileOptions& options) {
  struct statvfs info {};
  uint64_t free_bytes = 0;
  if (::statvfs(options.dir.c_str(), &info) == 0) {
    free_bytes = static_cast<uint64_t>(info.f_bavail) * info.f_frsize;
  }
  const uint64_t missing = options.bytes > free_bytes ? options.bytes - free_bytes : 0;
  fail(ErrorCode::kIo,
       "the disk of {} is full: {} are needed for {}, {} free, {} missing; free some, or give less "
       "with --disk-memory or another --disk-dir",
       printable_path(options.dir), format_bytes(options.bytes), options.label,
       format_bytes(free_bytes), format_bytes(missing));
}

void allocate(int fd, const TemporaryFileOptions& options) {
  if (options.bytes == 0) return;
  // First, since an allocation that fails has filled the disk for everyone meanwhile.
  struct statvfs info {};
  if (::fstatvfs(fd, &info) == 0 && info.f_blocks > 0 &&
      options.bytes / info.f_frsize > info.f_bavail) {
    fail_full(options);
  }
  int64_t result = 0;
  do {
    result = allocate_call(fd, options.bytes);
  } while (result == -EINTR);
  if (result == -ENOSPC || result == -EDQUOT || result == -EFBIG) fail_full(options);
  // A file system that cannot promise room: then only the length, and ENOSPC comes when writing.
  if (result == -EOPNOTSUPP || result == -EINVAL || result == -ENOSYS) {
    log_warning("{} cannot set disk space aside; it may run out later",
                printable_path(options.dir));
    result = ::ftruncate(fd, static_cast<off_t>(options.bytes)) == 0 ? 0 : -errno;
  }
  SPW_CHECK(result == 0, kIo, "no {} for {} in {}: {}", format_bytes(options.bytes), options.label,
            printable_path(options.dir), error_text(result));
}

}  // namespace

std::string temporary_file_name(std::string_view label, int64_t pid, uint64_t start,
                                uint64_t instance, uint64_t number) {
  return fmt::format("{}{}-{}-{}-{:016x}-{}{}", kPrefix, label, pid, start, instance, number,
                     kSuffix);
}

uint64_t process_start(int64_t pid) {
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  std::string text;
  std::getline(file, text);
  const size_t name_end = text.rfind(')');  // a name may have blanks and brackets
  if (name_end == std::string::npos) return 0;
  std::istringstream fields(text.substr(name_end + 1));
  std::string field;
  for (int i = 3; i <= 22 && fields >> field; ++i) {
  }
  uint64_t start = 0;
  std::from_chars(field.data(), field.data() + field.size(), start);
  return start;
}

uint64_t process_instance() {
  static const uint64_t instance = [] {
    std::ifstream file("/proc/sys/kernel/random/boot_id");
    std::string boot;
    std::getline(file, boot);
    std::error_code ignored;
    const auto space = std::filesystem::read_symlink("/proc/self/ns/pid", ignored).native();
    uint64_t hash = 0xcbf29ce484222325;  // FNV-1a: the same in every build
    for (const char c : boot + "/" + space) {
      hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
    }
    return hash;
  }();
  return instance;
}

int remove_dead_temporary_files(const std::filesystem::path& dir) {
  int removed = 0;
  std::error_code error;
  for (std::filesystem::directory_iterator each(dir, error), end; !error && each != end;
       each.increment(error)) {
    const auto parts = parse_name(each->path().filename().native());
    if (parts && try_remove_dead(each->path(), *parts)) ++removed;
  }
  return removed;
}

TemporaryFile::TemporaryFile(const TemporaryFileOptions& options) : bytes_(options.bytes) {
  SPW_ASSERT(!options.label.empty() &&
             options.label.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789") ==
                 std::string::npos);
  std::error_code error;
  SPW_CHECK(std::filesystem::is_directory(options.dir, error), kInvalidArgument,
            "{} is not a folder for temporary files; make it, or give another --disk-dir",
            printable_path(options.dir));
  remove_dead_once(std::filesystem::weakly_canonical(options.dir, error));
  int fd = options.keep_name ? -EOPNOTSUPP : open_unnamed(options.dir);
  const bool no_such_thing = fd == -EOPNOTSUPP || fd == -EISDIR || fd == -EINVAL || fd == -ENOSYS;
  if (no_such_thing) fd = open_named(options, name_);
  SPW_CHECK(fd >= 0, kIo, "cannot create a temporary file in {}: {}", printable_path(options.dir),
            error_text(fd));
  path_ = name_;
  const std::filesystem::path by_descriptor = fmt::format("/proc/self/fd/{}", fd);
  if (name_.empty()) {
    path_ = by_descriptor;
  } else if (!options.keep_name && std::filesystem::exists(by_descriptor, error) &&
             ::unlink(name_.c_str()) == 0) {
    name_.clear();  // as good as O_TMPFILE, but for the moment between
    path_ = by_descriptor;
  }
  try {
    allocate(fd, options);
    // Messages name the folder: a descriptor's number says nothing to people.
    file_ = std::make_unique<IoFile>(
        fd, name_.empty() ? options.dir / ("(" + options.label + ")") : name_);
  } catch (...) {
    ::close(fd);
    if (!name_.empty()) ::unlink(name_.c_str());
    throw;
  }
}

TemporaryFile::~TemporaryFile() {
  if (!name_.empty()) ::unlink(name_.c_str());
}

}  // namespace spillway
