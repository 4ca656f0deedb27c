// SPDX-License-Identifier: Apache-2.0
#include "base/process_figures.h"

#include <sys/resource.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <system_error>

namespace spillway {
namespace {

double seconds_of(const timeval& time) {
  return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
}

// Returns the number after `name` in a file of lines "name number"; 0 if there is none.
double number_in(const char* path, const std::string& name) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string word;
    double number = 0;
    if (words >> word >> number && word == name) return number;
  }
  return 0;
}

// Returns when this process started, in seconds since 1970; 0 if unknown. It never changes.
double start_time_s() {
  std::ifstream file("/proc/self/stat");
  std::string text((std::istreambuf_iterator<char>(file)), {});
  // The second field is the program's name in parentheses, which may have any characters in it.
  const size_t name_end = text.rfind(')');
  if (name_end == std::string::npos) return 0;
  std::istringstream fields(text.substr(name_end + 1));
  constexpr int kStartField = 22, kFirstField = 3;
  std::string field;
  for (int i = kFirstField; i <= kStartField; ++i) fields >> field;
  const double ticks = std::strtod(field.c_str(), nullptr);
  const double boot_s = number_in("/proc/stat", "btime");
  const auto per_s = static_cast<double>(::sysconf(_SC_CLK_TCK));
  return ticks > 0 && boot_s > 0 && per_s > 0 ? boot_s + ticks / per_s : 0;
}

}  // namespace

ProcessFigures process_figures() {
  static const double kStart = start_time_s();
  ProcessFigures figures;
  figures.start_time_s = kStart;
  const auto page = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  uint64_t virtual_pages = 0, resident_pages = 0;
  if (std::ifstream("/proc/self/statm") >> virtual_pages >> resident_pages) {
    figures.virtual_bytes = virtual_pages * page;
    figures.resident_bytes = resident_pages * page;
  }
  rusage usage{};
  if (::getrusage(RUSAGE_SELF, &usage) == 0)
    figures.cpu_s = seconds_of(usage.ru_utime) + seconds_of(usage.ru_stime);
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) == 0) figures.most_files = limit.rlim_cur;
  std::error_code error;
  std::filesystem::directory_iterator files("/proc/self/fd", error);
  if (!error)
    for (; files != std::filesystem::directory_iterator(); files.increment(error)) {
      if (error) break;
      ++figures.open_files;
    }
  if (figures.open_files > 0) --figures.open_files;  // the iterator's own descriptor
  return figures;
}

}  // namespace spillway
