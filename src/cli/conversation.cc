// SPDX-License-Identifier: Apache-2.0
#include "cli/conversation.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <system_error>

#include "base/error.h"
#include "base/printable.h"

namespace spillway {

std::vector<ChatMessage> Conversation::messages() const {
  std::vector<ChatMessage> all;
  if (!system_.empty()) all.push_back({"system", system_});
  all.insert(all.end(), messages_.begin(), messages_.end());
  return all;
}

bool Conversation::forget_oldest() {
  if (messages_.size() < 3) return false;
  messages_.erase(messages_.begin(), messages_.begin() + 2);
  return true;
}

void Conversation::save(const std::filesystem::path& path) {
  std::error_code error;
  const bool ours = std::find(saved_.begin(), saved_.end(), path) != saved_.end();
  SPW_CHECK(ours || !std::filesystem::exists(path, error), kInvalidArgument,
            "{} is there already; give another name", printable_path(path));
  std::string text;
  if (path.extension() == ".json") {
    nlohmann::json list = nlohmann::json::array();
    for (const ChatMessage& message : messages())
      list.push_back({{"role", message.role}, {"content", message.content}});
    text = list.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  } else {
    for (const ChatMessage& message : messages())
      text += message.role + ":\n" + message.content + "\n\n";
  }
  errno = 0;
  std::ofstream file(path, std::ios::binary);
  file << text << std::flush;
  SPW_CHECK(file.good(), kIo, "{} cannot be written: {}", printable_path(path),
            errno != 0 ? std::strerror(errno) : "no room, or no such folder");
  if (!ours) saved_.push_back(path);
}

}  // namespace spillway
