// SPDX-License-Identifier: Apache-2.0
#include "storage/mapped_files.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <mutex>
#include <utility>

#include "base/error.h"
#include "base/file_descriptor.h"
#include "base/printable.h"

namespace spillway {
namespace {

// A list that only grows, so that a signal handler can walk it at any time. An entry no longer used
// is taken for the next map.
struct KnownMap {
  std::atomic<uintptr_t> begin{0};  // 0: the entry is free
  std::atomic<uintptr_t> end{0};
  std::string line;  // the message; does not change while the entry is in use
  FileDescriptor fd;
  KnownMap* next = nullptr;
};
std::atomic<KnownMap*> g_maps{nullptr};
static_assert(std::atomic<uintptr_t>::is_always_lock_free &&
                  std::atomic<KnownMap*>::is_always_lock_free,
              "read in a signal handler");

std::mutex& writers() {
  static std::mutex mutex;
  return mutex;
}

std::string& lost() {
  static std::string text;
  return text;
}

// Set before the handler is installed.
std::string& line_start() {
  static std::string text;
  return text;
}
int g_exit_code = 1;
struct sigaction g_before = {};

const KnownMap* find_map(uintptr_t address) {
  for (const KnownMap* map = g_maps.load(); map != nullptr; map = map->next) {
    const uintptr_t begin = map->begin.load();
    if (begin != 0 && begin <= address && address < map->end.load()) return map;
  }
  return nullptr;
}

void say(const std::string& text) {
  // There is nothing to do if writing fails.
  static_cast<void>(!::write(STDERR_FILENO, text.data(), text.size()));
}

void on_bus_error(int, siginfo_t* info, void*) {
  const bool fault = info->si_code > 0;  // otherwise a process sent it
  const KnownMap* map = fault ? find_map(reinterpret_cast<uintptr_t>(info->si_addr)) : nullptr;
  if (map != nullptr) {
    // Several threads may get here at the same time.
    static std::atomic_flag said = ATOMIC_FLAG_INIT;
    if (!said.test_and_set()) {
      say(line_start());
      say(map->line);
      ::_exit(g_exit_code);
    }
    while (true) ::pause();  // until the other thread has ended the process
  }
  ::sigaction(SIGBUS, &g_before, nullptr);
  if (!fault) ::raise(SIGBUS);  // if it is a fault, the same access faults again
}

}  // namespace

void remember_map(const std::byte* data, size_t bytes, const std::filesystem::path& path,
                  int descriptor) {
  const std::lock_guard lock(writers());
  KnownMap* entry = g_maps.load();
  while (entry != nullptr && entry->begin.load() != 0) entry = entry->next;
  const bool is_new = entry == nullptr;
  if (is_new) entry = new KnownMap;
  entry->line = fmt::format(
      "{} lost data while it was in use: it was cut short, or its disk fails; put it back and "
      "start again\n",
      printable_path(path));
  entry->fd = FileDescriptor(::fcntl(descriptor, F_DUPFD_CLOEXEC, 0));
  entry->end = reinterpret_cast<uintptr_t>(data) + bytes;
  entry->begin = reinterpret_cast<uintptr_t>(data);
  if (!is_new) return;
  entry->next = g_maps.load();
  g_maps.store(entry);
}

void forget_map(const std::byte* data) noexcept {
  const std::lock_guard lock(writers());
  for (KnownMap* map = g_maps.load(); map != nullptr; map = map->next) {
    const uintptr_t begin = map->begin.load();
    if (begin != reinterpret_cast<uintptr_t>(data)) continue;
    map->begin = 0;
    struct stat now {};
    const auto bytes = static_cast<off_t>(map->end.load() - begin);
    if (map->fd.is_open() && ::fstat(map->fd.get(), &now) == 0 && now.st_size < bytes)
      lost() = map->line.substr(0, map->line.size() - 1);
    map->fd.close();
  }
}

std::string lost_pages_message() {
  const std::lock_guard lock(writers());
  return lost();
}

void end_when_maps_lose_pages(std::string before, int exit_code) {
  line_start() = std::move(before);
  g_exit_code = exit_code;
  struct sigaction action = {};
  action.sa_sigaction = on_bus_error;
  action.sa_flags = SA_SIGINFO;
  sigemptyset(&action.sa_mask);
  ::sigaction(SIGBUS, &action, &g_before);
}

}  // namespace spillway
