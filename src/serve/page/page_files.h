// SPDX-License-Identifier: Apache-2.0
// The server's own page: what it is doing, and a chat to try it. Its files are part of the program.
#pragma once

#include <span>
#include <string_view>

namespace spillway {

struct PageFile {
  std::string_view path;
  std::string_view content_type;
  std::string_view text;
};

// The page is at "/"; it asks for the other files and this server's routes, and nothing else.
std::span<const PageFile> page_files();

}  // namespace spillway
