// SPDX-License-Identifier: Apache-2.0
#include "storage/temporary_name.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

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

#include "base/error.h"
#include "base/log.h"
#include "base/printable.h"
#include "storage/io_calls.h"

namespace spillway {
namespace {

constexpr std::string_view kPrefix = "spillway-", kSuffix = ".tmp";
// A file of another boot, namespace or machine is left alone for this long, because it is not
// locked right after it was made.
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

// Accepts exactly the names that temporary_file_name() makes.
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
  return start != 0 && start != parts.start;  // the id now belongs to another process
}

bool try_remove_dead(const std::filesystem::path& path, const NameParts& parts) {
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!file.is_open()) return false;
  struct stat info {};
  bool dead =
      ::fstat(file.get(), &info) == 0 && S_ISREG(info.st_mode) && info.st_uid == ::geteuid();
  if (dead && parts.instance == process_instance()) {
    dead = process_has_ended(parts);
  } else if (dead) {
    dead = std::time(nullptr) - info.st_mtime > kForeignGraceSeconds;
  }
  // The owner's lock ends with the owner, wherever that runs.
  dead = dead && ::flock(file.get(), LOCK_EX | LOCK_NB) == 0;
  return dead && ::unlink(path.c_str()) == 0;
}

std::filesystem::path next_name(const std::filesystem::path& dir, std::string_view label) {
  static std::atomic<uint64_t> counter{0};
  const int64_t pid = ::getpid();
  return dir / temporary_file_name(label, pid, process_start(pid), process_instance(),
                                   counter.fetch_add(1));
}

// Locks a file of this process. On a file system without locks, the process id decides instead.
void lock(int fd) { static_cast<void>(::flock(fd, LOCK_EX | LOCK_NB)); }

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
  const size_t name_end = text.rfind(')');  // the process's name may contain blanks and brackets
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
    const std::string both = boot + "/" + space;
    return XXH3_64bits(both.data(), both.size());  // XXH3 gives the same hash in every build
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

void remove_dead_once(const std::filesystem::path& folder) {
  std::error_code error;
  const auto dir = std::filesystem::weakly_canonical(folder, error);
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

FileDescriptor open_unnamed(const std::filesystem::path& dir, int mode) {
  FileDescriptor file;
  do {
    file = open_call(dir, O_TMPFILE | O_RDWR | O_CLOEXEC, mode);
  } while (file.get() == -EINTR);
  return file;
}

bool has_no_unnamed_files(int error) {
  return error == -EOPNOTSUPP || error == -EISDIR || error == -EINVAL || error == -ENOSYS;
}

FileDescriptor open_named(const std::filesystem::path& dir, std::string_view label, int mode,
                          std::filesystem::path& name) {
  FileDescriptor file;
  do {
    name = next_name(dir, label);
    file = open_call(name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, mode);
  } while (file.get() == -EINTR || file.get() == -EEXIST);
  if (file.is_open()) lock(file.get());
  return file;
}

int64_t give_name(int fd, const std::filesystem::path& dir, std::string_view label,
                  std::filesystem::path& name) {
  lock(fd);
  int64_t result = 0;
  do {
    name = next_name(dir, label);
    result = link_call(path_of_descriptor(fd), name);
  } while (result == -EINTR || result == -EEXIST);
  if (result < 0) name.clear();
  return result;
}

std::filesystem::path path_of_descriptor(int fd) { return fmt::format("/proc/self/fd/{}", fd); }

}  // namespace spillway
