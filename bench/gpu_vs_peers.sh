#!/usr/bin/env bash
# Spillway beside llama.cpp and FlexGen on one machine with a GPU, cell by cell: builds Spillway and calls gpu_vs_peers.py.
set -uo pipefail

usage() {
  cat <<'EOF'
usage: bench/gpu_vs_peers.sh [--deps ARCHIVE] [--skip-build] [OPTIONS OF gpu_vs_peers.py]
  --deps ARCHIVE    libraries for a machine that cannot install packages; unpacked to a folder of its own
  --skip-build      build/release is there already
With --list and --table nothing is built. The others are gpu_vs_peers.py's:
EOF
  python3 bench/gpu_vs_peers.py --help
}

cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
deps='' do_build=1 rest=()
while (($#)); do
  case "$1" in
    --deps)
      if (($# < 2)); then usage >&2; exit 2; fi
      deps=$2; shift ;;
    --skip-build) do_build=0 ;;
    --list | --table) do_build=0; rest+=("$1") ;;
    -h | --help) usage; exit 0 ;;
    *) rest+=("$1") ;;
  esac
  shift
done

options=()
if [[ -n $deps ]]; then
  prefix=/tmp/spillway-deps
  mkdir -p "$prefix" && tar -xzf "$deps" -C "$prefix" || exit 1
  # A CMake package in there refers to a program that is not needed, and newer CMakes look for it.
  mkdir -p "$prefix/usr/bin" && touch "$prefix/usr/bin/civetweb"
  machine=$(uname -m)
  libraries=$prefix/usr/lib/$machine-linux-gnu
  export LD_LIBRARY_PATH=$libraries:$prefix/lib/$machine-linux-gnu:${LD_LIBRARY_PATH:-}
  export LIBRARY_PATH=$libraries
  export PKG_CONFIG_PATH=$libraries/pkgconfig:$prefix/usr/share/pkgconfig PKG_CONFIG_SYSROOT_DIR=$prefix
  options+=("-DCMAKE_PREFIX_PATH=$prefix/usr")
fi
if ((do_build)); then
  log=build/gpu-vs-peers-build.txt
  mkdir -p build
  if ! { cmake --preset release "${options[@]}" &&
    cmake --build build/release --parallel "$(nproc)" --target spillway random_gguf; } >"$log" 2>&1; then
    grep -E 'error|FAILED' "$log" | head -20 >&2
    exit 1
  fi
fi
exec python3 bench/gpu_vs_peers.py "${rest[@]}"
