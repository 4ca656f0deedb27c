// SPDX-License-Identifier: Apache-2.0
// A file descriptor that is closed with its owner. No other code closes descriptors.
#pragma once

#include <unistd.h>

#include <cerrno>
#include <utility>

namespace spillway {

// Owns a descriptor, or holds the -errno of the call that gave none, so that the caller can say
// why. Move-only and not thread-safe; the system decides which calls on the descriptor are. Throws
// nothing. The result of close() is ignored: code that must know that bytes have arrived syncs
// before.
class FileDescriptor {
 public:
  FileDescriptor() = default;  // owns none
  // Takes over what a call returned; a negative value means that there is no descriptor.
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
  // Returns the descriptor for system calls; negative if there is none.
  int get() const { return fd_; }
  // Closes the descriptor early; afterwards there is none.
  void close() noexcept {
    if (fd_ >= 0) ::close(fd_);
    fd_ = kNone;
  }

 private:
  static constexpr int kNone = -EBADF;
  int fd_ = kNone;
};

}  // namespace spillway
