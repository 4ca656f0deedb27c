// SPDX-License-Identifier: Apache-2.0
// Tells what the program was built from. cmake/build_info.cmake generates the definitions with
// every build; only the program itself links them, so that a commit relinks nothing else.
#pragma once

namespace spillway {

extern const char* const kBuildCommit;  // "0123456789", "0123456789+changes", or "unknown"
extern const char* const kBuildCuda;    // "CUDA 13.0 (90a-real)" or "no CUDA"

}  // namespace spillway
