#!/usr/bin/env bash
# Everything about the GPU in one go, from a bare machine: builds, runs the parity tests, measures the table of
# gpu_report.py and prints it. Under 8 minutes on 16 cores and an H200.
set -uo pipefail

usage() {
  cat <<'EOF'
usage: bench/gpu_report.sh [--deps ARCHIVE] [--models FOLDER] [--out FOLDER] [--sanitizer] [--skip-tests] [--skip-build]
  --deps ARCHIVE    libraries for a machine that cannot install packages; unpacked to a folder of its own
  --models FOLDER   *.gguf files whose text and perplexity are compared with the CPU's (text: FOLDER/*.txt)
  --out FOLDER      where results go; default: build/gpu-report
  --sanitizer       also run compute-sanitizer (memcheck, racecheck) over a part of the tests
Exit codes: 0 done, 1 something failed, 2 wrong usage.
EOF
}

deps='' models='' out=build/gpu-report sanitizer=0 tests=1 do_build=1
while (($#)); do
  case "$1" in
    --deps) deps=$2; shift ;;
    --models) models=$2; shift ;;
    --out) out=$2; shift ;;
    --sanitizer) sanitizer=1 ;;
    --skip-tests) tests=0 ;;
    --skip-build) do_build=0 ;;
    -h | --help) usage; exit 0 ;;
    *) usage >&2; exit 2 ;;
  esac
  shift
done
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
mkdir -p "$out"
failed=0
say() { echo "[$SECONDS s] $*"; }

options=()
if [[ -n $deps ]]; then
  prefix=/tmp/spillway-deps
  mkdir -p "$prefix" && tar -xzf "$deps" -C "$prefix"
  libraries=$prefix/usr/lib/$(uname -m)-linux-gnu
  export LD_LIBRARY_PATH=$libraries:$prefix/lib/$(uname -m)-linux-gnu:${LD_LIBRARY_PATH:-}
  export PKG_CONFIG_PATH=$libraries/pkgconfig:$prefix/usr/share/pkgconfig PKG_CONFIG_SYSROOT_DIR=$prefix
  options+=("-DCMAKE_PREFIX_PATH=$prefix/usr")
fi
build=build/release bin=build/release/bin
if ((do_build)); then
  cmake --preset release "${options[@]}" >"$out/build.txt" 2>&1 &&
    cmake --build $build --parallel "$(nproc)" --target spillway cuda_test parity_test generation_test gpu_linear_bench \
      gpu_quant_bench gpu_attention_bench >>"$out/build.txt" 2>&1 ||
    { grep -E 'error|FAILED' "$out/build.txt" | head -20; exit 1; }
  say built
fi

# All at once: they check, nothing is timed.
start_test() { # NAME COMMAND...
  local name=$1
  shift
  (timeout 230 "$@" >"$out/$name.txt" 2>&1; echo "$?" >"$out/$name.rc") &
}
names=()
if ((tests)); then
  names+=(cuda_test generation_test parity_test)
  start_test cuda_test $build/src/cuda/cuda_test --gtest_brief=1
  start_test generation_test $build/tests/generation/generation_test --gtest_filter='Cuda*' --gtest_brief=1
  start_test parity_test $build/tests/parity/parity_test --gtest_filter='*cuda*' --gtest_brief=1
fi
if ((sanitizer)); then
  for tool in memcheck racecheck; do
    names+=($tool)
    start_test $tool compute-sanitizer --tool $tool --error-exitcode 9 $build/tests/generation/generation_test \
      --gtest_filter='CudaGenerationTest.Recorded*:CudaGenerationTest.Draws*'
  done
fi
wait
for name in "${names[@]}"; do
  say "$name: rc $(cat "$out/$name.rc"), $(grep -E '^\[  PASSED|ERROR SUMMARY|RACECHECK SUMMARY' "$out/$name.txt" | tr '\n' ' ')"
  if [[ $(cat "$out/$name.rc") != 0 ]]; then
    failed=1
    grep -E '^\[  FAILED|Failure|rror' "$out/$name.txt" | cut -c1-160 | head -12
  fi
done
python3 bench/gpu_report.py --bin $bin --out "$out" ${models:+--models "$models"} || failed=1
say done
exit $failed
