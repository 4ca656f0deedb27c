// SPDX-License-Identifier: Apache-2.0
#include "cli/chat_history.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string_view>
#include <system_error>

#include "base/file_descriptor.h"
#include "base/log.h"
#include "base/printable.h"

namespace spillway {
namespace {

constexpr mode_t kPrivateFolder = 0700;
constexpr mode_t kPrivateFile = 0600;
// Only this much is read from the end of a longer file.
constexpr size_t kMaxFileBytes = size_t{4} << 20;

std::string escape(std::string_view message) {
  std::string line;
  for (const char c : message) {
    if (c == '\\') {
      line += "\\\\";
    } else if (c == '\n') {
      line += "\\n";
    } else {
      line += c;
    }
  }
  return line;
}

std::string unescape(std::string_view line) {
  std::string message;
  for (size_t i = 0; i < line.size(); ++i) {
    const bool escaped = line[i] == '\\' && i + 1 < line.size();
    if (escaped) ++i;
    message += escaped && line[i] == 'n' ? '\n' : line[i];
  }
  return message;
}

bool write_all(int file, std::string_view text) {
  while (!text.empty()) {
    const ssize_t count = write(file, text.data(), text.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    text.remove_prefix(static_cast<size_t>(count));
  }
  return true;
}

// Makes missing folders, accessible by their owner alone.
void make_private_folders(const std::filesystem::path& folder) {
  if (folder.empty() || folder == folder.root_path()) return;
  if (mkdir(folder.c_str(), kPrivateFolder) == 0 || errno != ENOENT) return;
  make_private_folders(folder.parent_path());
  mkdir(folder.c_str(), kPrivateFolder);
}

}  // namespace

std::optional<std::filesystem::path> try_history_path() {
  constexpr const char* kFile = "spillway/chat_history";
  const char* state = std::getenv("XDG_STATE_HOME");
  if (state != nullptr && *state != '\0') return std::filesystem::path(state) / kFile;
  const char* home = std::getenv("HOME");
  if (home == nullptr || *home == '\0') return std::nullopt;
  return std::filesystem::path(home) / ".local" / "state" / kFile;
}

ChatHistory::ChatHistory(std::optional<std::filesystem::path> path) : path_(std::move(path)) {
  if (path_) load();
}

void ChatHistory::give_up(const char* what) {
  log_warning("{}: cannot be {}: {}; this chat's history is not kept", printable_path(*path_), what,
              std::strerror(errno));
  path_.reset();
}

void ChatHistory::load() {
  struct stat status = {};
  if (stat(path_->c_str(), &status) != 0) return;  // no history yet
  std::ifstream file(*path_, std::ios::binary);
  if (!S_ISREG(status.st_mode) || !file) return give_up("read");
  const auto bytes = static_cast<size_t>(std::max<off_t>(status.st_size, 0));
  const bool too_long = bytes > kMaxFileBytes;
  std::string line;
  if (too_long) {  // skips the rest of a line that begins before it
    file.seekg(static_cast<std::streamoff>(bytes - kMaxFileBytes));
    std::getline(file, line);
  }
  while (std::getline(file, line)) {
    if (!line.empty()) messages_.push_back(unescape(line));
  }
  const bool too_many = messages_.size() > 2 * kMaxMessages;
  if (messages_.size() > kMaxMessages)
    messages_.erase(messages_.begin(), messages_.end() - static_cast<std::ptrdiff_t>(kMaxMessages));
  if (too_long || too_many) rewrite();
}

// Writes a temporary file and renames it, so that the history is complete at any moment.
void ChatHistory::rewrite() {
  std::string text;
  for (const std::string& message : messages_) text += escape(message) + "\n";
  std::string temporary = path_->string() + ".XXXXXX";
  // mkstemp() makes it accessible by its owner alone.
  FileDescriptor file(mkstemp(temporary.data()));
  if (!file.is_open()) return give_up("written");
  const bool written = write_all(file.get(), text);
  file.close();
  if (written && rename(temporary.c_str(), path_->c_str()) == 0) return;
  const int error = errno;
  unlink(temporary.c_str());
  errno = error;
  give_up("written");
}

bool ChatHistory::add(const std::string& message) {
  if (message.empty() || message.size() > kMaxMessageBytes) return false;
  if (!messages_.empty() && messages_.back() == message) return false;
  messages_.push_back(message);
  if (path_) append(message);
  return true;
}

void ChatHistory::append(const std::string& message) {
  make_private_folders(path_->parent_path());
  const FileDescriptor file(
      open(path_->c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, kPrivateFile));
  if (!file.is_open()) return give_up("written");
  // Corrects the permissions of a file that existed before.
  const bool is_private = fchmod(file.get(), kPrivateFile) == 0;
  const bool written = is_private && write_all(file.get(), escape(message) + "\n");
  if (!written) give_up("written");
}

}  // namespace spillway
