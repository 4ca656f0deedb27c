#!/bin/sh
# Builds, tests and measures the CPU device on this machine, in one go: for machines that are lent for minutes.
#   bench/cpu_report.sh OUT_FOLDER [LLAMA_BENCH]
# Prints tables: linear layers and decode attention as shares of the best read loop, then models; with LLAMA_BENCH (llama.cpp's
# benchmark program) both engines in turns. OUT_FOLDER gets one file per step. From the environment: CMAKE_ARGS (for cmake),
# BUILD (a folder that is built already, which is then neither built nor tested), THREADS, COLD_MB (more than the caches hold),
# MODELS (beside llama.cpp). Models are written to a temporary folder (about 14 GB, one after the other).
set -eu
out=$(mkdir -p "$1" && cd "$1" && pwd)
llama_bench=${2:-}
cd "$(dirname "$0")/.."
threads=${THREADS:-$(nproc)}
cold=${COLD_MB:-$([ "$threads" -gt 4 ] && echo 1500 || echo 400)}
lscpu > "$out/lscpu.txt"
build=${BUILD:-}
if [ -z "$build" ]; then
  build=build/release
  cmake --preset release ${CMAKE_ARGS:-} > "$out/build.txt"
  cmake --build --preset release -j "$threads" >> "$out/build.txt" 2>&1 || { tail -40 "$out/build.txt"; exit 1; }
  (cd $build && ctest -j "$threads" > "$out/tests.txt" 2>&1) || true
  grep -E "tests passed|\(Failed\)" "$out/tests.txt" || true
fi
"$build/bin/ceilings" --threads "$threads" | tee "$out/ceilings.txt"
"$build/bench/linear_bench" --threads "$threads" --cold_mb "$cold" --benchmark_min_time=0.1 --benchmark_format=csv \
  --benchmark_filter='^linear/(F16|BF16|Q4_0|Q4_1|G4|Q8_0|Q2_K|Q3_K|Q4_K|Q5_K|Q6_K)/llama-2-7b.down/tokens:(1|2|4|8)/' \
  > "$out/linear.csv" 2> "$out/linear.log" || tail -3 "$out/linear.log"
SPILLWAY_BENCH_THREADS=$threads "$build/bench/attention_bench" --benchmark_min_time=0.2 --benchmark_format=csv \
  --benchmark_filter='(llama-2-7b|llama-3-8b|llama-3-70b)/batch:(1/rows:1/cached:(8191|32767)/real|32/rows:1/cached:8191/)' \
  > "$out/attention.csv" 2> "$out/attention.log" || tail -3 "$out/attention.log"
python3 bench/cpu_tables.py "$out" --threads "$threads" -o "$out/tables.json" | tee "$out/tables.txt"
if [ -n "$llama_bench" ]; then
  cache=$(mktemp -d)
  python3 bench/vs_llama_cpp.py --spillway "$build/bin/spillway" --llama-bench "$llama_bench" --threads "$threads" --repeat 5 --inner 1 \
    --models "${MODELS:-llama-2-7b:q4_0,llama-2-7b:q4_k_m,llama-2-7b:f16,tinyllama-1.1b:f16,tinyllama-1.1b:q4_k_m}" --cache "$cache" --delete \
    -o "$out/vs_llama_cpp.json" | tee "$out/vs_llama_cpp.txt"
  rm -rf "$cache"
fi
