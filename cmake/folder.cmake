# One CMake target per folder of src/: library spw_<folder>, linked to exactly the folders that src/folders.txt allows
# (those that exist), plus one GoogleTest binary <folder>_test for the tests beside the code.
#
#   spw_folder(text SOURCES a.cc b.cc TESTS a_test.cc LINKS PkgConfig::PCRE2)
#
# TEST_LINKS: what only the tests need, e.g. a device that the folder itself may not see.
# NO_UNITY: its files cannot share a translation unit, because their names clash on purpose or per instruction set.
# OPTIMIZE: another level than -O2, where the folder's loops or its compile time ask for it; sanitizers keep their own.
file(STRINGS ${CMAKE_SOURCE_DIR}/src/folders.txt SPW_FOLDER_TABLE REGEX "^[a-z]+:")
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/folders.txt)

function(spw_allowed_folders FOLDER OUT)
  foreach(line IN LISTS SPW_FOLDER_TABLE)
    if(line MATCHES "^${FOLDER}:(.*)$")
      string(STRIP "${CMAKE_MATCH_1}" names)
      string(REPLACE " " ";" names "${names}")
      set(present "")
      foreach(name IN LISTS names)
        if(EXISTS ${CMAKE_SOURCE_DIR}/src/${name}/CMakeLists.txt)
          list(APPEND present ${name})
        endif()
      endforeach()
      set(${OUT} "${present}" PARENT_SCOPE)
      return()
    endif()
  endforeach()
  message(FATAL_ERROR "folder '${FOLDER}' is not in src/folders.txt")
endfunction()

# The program, every test and what tests run: all that scripts/test.sh needs. Other benchmarks are only in `all`.
add_custom_target(tested)

# Gives the tests of a binary that match a GoogleTest filter a label.
function(spw_label_tests NAME LABEL FILTER)
  gtest_discover_tests(${NAME} TEST_FILTER "${FILTER}" DISCOVERY_TIMEOUT 60 PROPERTIES LABELS ${LABEL} TIMEOUT 600)
endfunction()

# Adds a GoogleTest binary. Tests that want a GPU, those that match the filter GPU_TESTS, have the label `cuda`, all
# others `unit`. KERNELS: it can leave instructions out (--without=amx,avx512), so that the kernels of other processors
# are tested, too. OPTIMIZED: also under sanitizers, for those that take long or look at the clock.
function(spw_test NAME)
  cmake_parse_arguments(ARG "KERNELS;OPTIMIZED" "GPU_TESTS" "SOURCES;LINKS" ${ARGN})
  if(NOT SPILLWAY_TESTS)
    return()
  endif()
  add_executable(${NAME} ${ARG_SOURCES})
  add_dependencies(tested ${NAME})
  target_include_directories(${NAME} PRIVATE ${CMAKE_SOURCE_DIR}/src ${CMAKE_SOURCE_DIR})
  # Most of a test's time is its compilation: with sanitizers, optimizing the instrumented code takes three times as long
  # as the rest of it.
  if(SPILLWAY_SANITIZE AND NOT ARG_KERNELS AND NOT ARG_OPTIMIZED)
    target_compile_options(${NAME} PRIVATE -O0)
    spw_use_precompiled(${NAME} test_O0)
  else()
    target_compile_options(${NAME} PRIVATE -O1)
    spw_use_precompiled(${NAME} test_O1)
  endif()
  target_compile_definitions(${NAME} PRIVATE
    SPW_SOURCE_DIR="${CMAKE_SOURCE_DIR}" SPW_SHARED_DATA="${CMAKE_SOURCE_DIR}/../shared/data")
  if(ARG_KERNELS)
    target_sources(${NAME} PRIVATE ${CMAKE_SOURCE_DIR}/tests/kernel_test_main.cc)
    target_link_libraries(${NAME} PRIVATE ${ARG_LINKS} GTest::gmock GTest::gtest)
  else()
    target_link_libraries(${NAME} PRIVATE ${ARG_LINKS} GTest::gmock GTest::gtest_main)
  endif()
  if(NOT ARG_GPU_TESTS)
    spw_label_tests(${NAME} unit "*")
    return()
  endif()
  spw_label_tests(${NAME} cuda "${ARG_GPU_TESTS}")
  spw_label_tests(${NAME} unit "-${ARG_GPU_TESTS}")
endfunction()

# Compiles this many sources of a target as one translation unit.
function(spw_use_unity TARGET SOURCES_AT_A_TIME)
  if(SPILLWAY_UNITY)
    set_target_properties(${TARGET} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE ${SOURCES_AT_A_TIME})
  endif()
endfunction()

function(spw_folder FOLDER)
  cmake_parse_arguments(ARG "KERNEL_TESTS;NO_UNITY" "GPU_TESTS;OPTIMIZE" "SOURCES;TESTS;LINKS;TEST_LINKS" ${ARGN})
  spw_allowed_folders(${FOLDER} folders)
  set(links "")
  foreach(name IN LISTS folders)
    list(APPEND links spw_${name})
  endforeach()
  add_library(spw_${FOLDER} STATIC ${ARG_SOURCES})
  target_include_directories(spw_${FOLDER} PUBLIC ${CMAKE_SOURCE_DIR}/src)
  target_link_libraries(spw_${FOLDER} PUBLIC ${links} PRIVATE ${ARG_LINKS})
  if(NOT ARG_NO_UNITY)
    spw_use_unity(spw_${FOLDER} 4)
  endif()
  if(ARG_OPTIMIZE AND NOT SPILLWAY_SANITIZE)
    target_compile_options(spw_${FOLDER} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-${ARG_OPTIMIZE}>)
    spw_use_precompiled(spw_${FOLDER} ${ARG_OPTIMIZE})
  else()
    spw_use_precompiled(spw_${FOLDER} default)
  endif()
  if(ARG_TESTS)
    set(kernels "")
    if(ARG_KERNEL_TESTS)
      set(kernels KERNELS)
    endif()
    spw_test(${FOLDER}_test ${kernels} GPU_TESTS "${ARG_GPU_TESTS}" SOURCES ${ARG_TESTS}
      LINKS spw_${FOLDER} ${ARG_LINKS} ${ARG_TEST_LINKS})
  endif()
endfunction()
