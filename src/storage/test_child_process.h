// SPDX-License-Identifier: Apache-2.0
// Helpers for tests that kill a process in the middle of its work and look at what it leaves.
#pragma once

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <iterator>

namespace spillway {

inline size_t names_in(const std::filesystem::path& dir) {
  return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(dir), {}));
}

// Runs `work` in a child process, which then waits; returns its id when the work is done.
inline pid_t start_child(const std::function<void()>& work) {
  int ready[2];
  EXPECT_EQ(::pipe(ready), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    try {
      work();
    } catch (...) {
      ::_exit(1);
    }
    const char byte = 1;
    if (::write(ready[1], &byte, 1) == 1) ::pause();
    ::_exit(2);
  }
  ::close(ready[1]);
  char byte = 0;
  EXPECT_EQ(::read(ready[0], &byte, 1), 1) << "the child failed";
  ::close(ready[0]);
  return child;
}

inline void kill_and_wait(pid_t child) {
  ::kill(child, SIGKILL);
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
}

}  // namespace spillway
