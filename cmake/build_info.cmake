# Writes the C++ source OUT, which says what the program was built from: the commit that SOURCE is at ("unknown" outside
# a repository of its own) and CUDA, a text that is passed on. A file that would stay the same is left alone, so that
# running this with every build rebuilds nothing without need.
#
#   cmake -DSOURCE=DIR -DOUT=FILE -DCUDA=TEXT -P cmake/build_info.cmake
set(ENV{GIT_OPTIONAL_LOCKS} 0)

function(run_git OUT_VAR)
  execute_process(COMMAND git -C ${SOURCE} ${ARGN}
    RESULT_VARIABLE failed OUTPUT_VARIABLE output ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
  if(failed)
    set(output "")
  endif()
  set(${OUT_VAR} "${output}" PARENT_SCOPE)
endfunction()

set(commit "unknown")
run_git(top rev-parse --show-toplevel)
if(top)
  file(REAL_PATH "${top}" top)
  file(REAL_PATH "${SOURCE}" source)
  run_git(head rev-parse --short=10 HEAD)
  if(head AND top STREQUAL source)
    set(commit ${head})
    run_git(changes status --porcelain --untracked-files=no)
    if(changes)
      string(APPEND commit "+changes")
    endif()
  endif()
endif()

file(CONFIGURE OUTPUT ${OUT} CONTENT [[
// SPDX-License-Identifier: Apache-2.0
// Made by cmake/build_info.cmake.
#include "cli/build_info.h"

namespace spillway {

const char* const kBuildCommit = "@commit@";
const char* const kBuildCuda = "@CUDA@";

}  // namespace spillway
]] @ONLY)
