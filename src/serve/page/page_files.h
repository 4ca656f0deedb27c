// SPDX-License-Identifier: Apache-2.0
// The files of the server's own web page (its status, and a chat to try it), which are part of the
// program.
#pragma once

#include <span>
#include <string_view>

namespace spillway {

struct PageFile {
  std::string_view path;
  std::string_view content_type;
  std::string_view text;
};

// The page is at "/"; it requests only the other files and this server's routes.
std::span<const PageFile> page_files();

}  // namespace spillway
