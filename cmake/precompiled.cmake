# Precompiled standard headers: without them every file spends a second or more on parsing the same ones. No source may
# rely on them: `scripts/test.sh --full` compiles files without them, so that a missing #include fails there.
#
# A precompiled header serves only files with the same optimization level, hence one library for each:
# spw_precompiled_default for the build type's own level, spw_precompiled_O1 and so on, spw_precompiled_test_O1 with
# GoogleTest.
option(SPILLWAY_PRECOMPILED "Precompile the standard headers" ON)

set(SPW_STANDARD_HEADERS
  <algorithm> <array> <atomic> <charconv> <chrono> <cmath> <condition_variable> <cstdint> <cstring> <deque> <filesystem>
  <fstream> <functional> <limits> <map> <memory> <mutex> <numeric> <optional> <set> <span> <string> <string_view> <thread>
  <tuple> <unordered_map> <utility> <variant> <vector> <fmt/format.h>)

# Makes a target use the precompiled headers of one kind: default, O1, O3, test_O0, test_O1. Sources with options of their
# own, such as an instruction set, must set SKIP_PRECOMPILE_HEADERS: they do not match.
function(spw_use_precompiled TARGET KIND)
  if(NOT SPILLWAY_PRECOMPILED)
    return()
  endif()
  set(library spw_precompiled_${KIND})
  if(NOT TARGET ${library})
    set(headers ${SPW_STANDARD_HEADERS})
    # A library needs a source; this one is empty.
    set(source ${CMAKE_BINARY_DIR}/precompiled/${KIND}.cc)
    file(CONFIGURE OUTPUT ${source} CONTENT "")
    add_library(${library} OBJECT ${source})
    target_link_libraries(${library} PRIVATE fmt::fmt Threads::Threads)
    if(KIND MATCHES "^test_(.*)")
      list(APPEND headers <gtest/gtest.h> <gmock/gmock.h>)
      target_link_libraries(${library} PRIVATE GTest::gmock GTest::gtest)
      target_compile_options(${library} PRIVATE -${CMAKE_MATCH_1})
    elseif(NOT KIND STREQUAL "default")
      target_compile_options(${library} PRIVATE -${KIND})
    endif()
    # For C++ alone: CUDA sources take no precompiled header of another compiler.
    list(TRANSFORM headers REPLACE "(.+)" "$<$<COMPILE_LANGUAGE:CXX>:\\1>")
    list(TRANSFORM headers REPLACE "<([a-z_/.]+)>>$" "<\\1$<ANGLE-R>>")
    target_precompile_headers(${library} PRIVATE ${headers})
  endif()
  target_precompile_headers(${TARGET} REUSE_FROM ${library})
endfunction()
