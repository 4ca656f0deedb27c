#!/usr/bin/env bash
# Configures build/PRESET, quietly when all is well; starts afresh when the tree was moved or copied since.
set -euo pipefail

if (($# < 1)) || [[ $1 == -* ]]; then
  echo "usage: scripts/configure.sh PRESET [-DNAME=VALUE...]   (release, product, plain, debug, tsan, fuzz)"
  if [[ ${1:-} == -h || ${1:-} == --help ]]; then exit 0; fi
  exit 2
fi
cd "$(dirname "${BASH_SOURCE[0]}")/.."
build=build/$1
fresh=()
if [[ -f $build/CMakeCache.txt ]] && ! grep -qFx "CMAKE_HOME_DIRECTORY:INTERNAL=$(pwd -P)" "$build/CMakeCache.txt" &&
  ! grep -qFx "CMAKE_HOME_DIRECTORY:INTERNAL=$(pwd)" "$build/CMakeCache.txt"; then
  fresh=(--fresh)
fi
mkdir -p "$build"
if ! cmake --preset "$1" "${fresh[@]}" "${@:2}" >"$build/configure.log" 2>&1; then
  cat "$build/configure.log" >&2
  exit 1
fi
echo "configured $build"
# Without nvcc a build is for CPUs alone, which is worth a word where a GPU would be idle.
if ! grep -q '^SPILLWAY_CUDA:[A-Z]*=OFF$' "$build/CMakeCache.txt" && grep -q 'CUDA device: OFF' "$build/configure.log" &&
  nvidia-smi -L >/dev/null 2>&1; then
  echo "warning: there is an NVIDIA GPU, but no nvcc: this build uses the CPU only. Install NVIDIA's CUDA toolkit and run this again" >&2
fi
