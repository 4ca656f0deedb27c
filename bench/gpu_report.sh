#!/usr/bin/env bash
# Everything about the GPU in one go, from a bare machine: builds, runs the parity tests, measures the table of
# gpu_report.py and prints it. Under 8 minutes on 16 cores and an H200.
set -uo pipefail

usage() {
  cat <<'EOF'
usage: bench/gpu_report.sh [--deps ARCHIVE] [--models FOLDER] [--out FOLDER] [--sanitizer] [--test-seconds N]
                           [--skip-tests] [--skip-build] [--skip-measuring]
  --deps ARCHIVE    libraries for a machine that cannot install packages; unpacked to a folder of its own
  --models FOLDER   *.gguf files, widened to F32, whose text and perplexity are compared with the CPU's (text: FOLDER/*.txt)
  --out FOLDER      where results go; default: build/gpu-report
  --sanitizer       also run the tests of kernels and ops under compute-sanitizer (memcheck, racecheck); takes minutes
  --test-seconds N  what has not ended by then is cut off and named; default: 150, with --sanitizer 420
Exit codes: 0 done, 1 something failed, 2 wrong usage.
EOF
}

deps='' models='' out=build/gpu-report sanitizer=0 tests=1 do_build=1 measure=1 test_seconds=
while (($#)); do
  case "$1" in
    --deps) deps=$2; shift ;;
    --models) models=$2; shift ;;
    --out) out=$2; shift ;;
    --sanitizer) sanitizer=1 ;;
    --test-seconds) test_seconds=$2; shift ;;
    --skip-tests) tests=0 ;;
    --skip-build) do_build=0 ;;
    --skip-measuring) measure=0 ;;
    -h | --help) usage; exit 0 ;;
    *) usage >&2; exit 2 ;;
  esac
  shift
done
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
mkdir -p "$out"
if [[ -n $models ]]; then export SPILLWAY_TEST_MODELS=$(realpath "$models"); fi
failed=0
say() { echo "[$SECONDS s] $*"; }

options=()
if [[ -n $deps ]]; then
  prefix=/tmp/spillway-deps
  mkdir -p "$prefix" && tar -xzf "$deps" -C "$prefix"
  # A CMake package in there refers to a program that is not needed, and newer CMakes look for it.
  mkdir -p "$prefix/usr/bin" && touch "$prefix/usr/bin/civetweb"
  libraries=$prefix/usr/lib/$(uname -m)-linux-gnu
  export LD_LIBRARY_PATH=$libraries:$prefix/lib/$(uname -m)-linux-gnu:${LD_LIBRARY_PATH:-}
  export LIBRARY_PATH=$libraries
  export PKG_CONFIG_PATH=$libraries/pkgconfig:$prefix/usr/share/pkgconfig PKG_CONFIG_SYSROOT_DIR=$prefix
  options+=("-DCMAKE_PREFIX_PATH=$prefix/usr")
fi
build=build/release bin=build/release/bin
if ((do_build)); then
  cmake --preset release "${options[@]}" >"$out/build.txt" 2>&1 &&
    cmake --build $build --parallel "$(nproc)" --target spillway cuda_test parity_test generation_test gpu_linear_bench \
      gpu_quant_bench gpu_attention_bench gpu_ablation >>"$out/build.txt" 2>&1 ||
    { grep -E 'error|FAILED' "$out/build.txt" | head -20; exit 1; }
  say built
fi

if ((tests)); then
  sanitize=()
  if ((sanitizer)); then sanitize=(--sanitizer); fi
  python3 bench/gpu_tests.py --build $build --out "$out" --timeout "${test_seconds:-$((sanitizer ? 420 : 150))}" "${sanitize[@]}" || failed=1
  say tested
fi
if ((measure)); then
  python3 bench/gpu_report.py --bin $bin --out "$out" ${models:+--models "$models"} || failed=1
fi
say done
exit $failed
