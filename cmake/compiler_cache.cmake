# Uses ccache, if it is installed, with the settings that this build needs whatever the user's own are:
# - sloppiness: objects that use a precompiled header are cached at all;
# - depend mode: a miss runs the compiler once, without a preprocessor before it;
# - inode cache: the precompiled header, 100 MB, is hashed once and not for every object;
# - base directory: another clone of the same sources finds the objects of this one.
find_program(CCACHE ccache)
if(CCACHE)
  set(SPW_CCACHE env CCACHE_SLOPPINESS=pch_defines,time_macros CCACHE_DEPEND=1 CCACHE_INODECACHE=1 CCACHE_BASEDIR=${CMAKE_SOURCE_DIR}
      CCACHE_NOHASHDIR=1 ${CCACHE})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${SPW_CCACHE})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CCACHE})
endif()
