// SPDX-License-Identifier: Apache-2.0
// A file descriptor that is closed with its owner: the one place that closes any.
#pragma once

#include <unistd.h>

#include <cerrno>
#include <utility>

namespace spillway {

// Owns a descriptor, or holds the -errno of the call that gave none, so that who opened it can say
// why. Move-only; not thread-safe itself, what is done with the descriptor is the system's affair.
// Throws nothing. What close() answers is not looked at: who must know that bytes have arrived
// syncs before.
class FileDescriptor {
 public:
  FileDescriptor() = default;  // none
  // Takes over what a call returned; negative: there is none.
  explicit FileDescriptor(int fd) noexcept : fd_(fd) {}
  ~FileDescriptor() { close(); }
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(std::exchange(other.fd_, kNone)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    if (this != &other) {
      close();
      fd_ = std::exchange(other.fd_, kNone);
    }
    return *this;
  }
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;

  bool is_open() const { return fd_ >= 0; }
  // For system calls; negative where there is none.
  int get() const { return fd_; }
  // Before its time; afterwards there is none.
  void close() noexcept {
    if (fd_ >= 0) ::close(fd_);
    fd_ = kNone;
  }

 private:
  static constexpr int kNone = -EBADF;
  int fd_ = kNone;
};

}  // namespace spillway
