#!/bin/sh
# Builds, tests and measures the CPU device on this machine, in one go: for machines that are lent for minutes.
#   bench/cpu_report.sh OUT_FOLDER [LLAMA_BENCH]
# OUT_FOLDER gets one file per step. With LLAMA_BENCH (llama.cpp's benchmark program) both engines run a 7B Q4_0 and a 1.1B
# model in turns. CMAKE_ARGS are passed to cmake. Models are written to a temporary folder (about 7 GB).
set -eu
out=$(mkdir -p "$1" && cd "$1" && pwd)
llama_bench=${2:-}
cd "$(dirname "$0")/.."
threads=$(nproc)
lscpu > "$out/lscpu.txt"
cmake --preset release ${CMAKE_ARGS:-} > "$out/build.txt"
cmake --build --preset release -j "$threads" >> "$out/build.txt" 2>&1 || { tail -40 "$out/build.txt"; exit 1; }
(cd build/release && ctest -j "$threads" > "$out/tests.txt" 2>&1) || true
grep -E "tests passed|\(Failed\)" "$out/tests.txt" || true
bin=build/release/bin
$bin/ceilings --threads "$threads" | tee "$out/ceilings.txt"
build/release/bench/linear_bench --threads "$threads" --benchmark_min_time=0.2 --benchmark_format=csv \
  --benchmark_filter='^(linear|rows)/(F16|BF16|Q4_0|Q8_0|Q4_K)/llama-2-7b.*tokens:(1|8|64|512)/' > "$out/linear.csv" 2> /dev/null || true
cat "$out/linear.csv"
for model in llama-2-7b:q4_0 llama-2-7b:bf16 tinyllama-1.1b:f16 tinyllama-1.1b:q8_0; do
  $bin/spillway bench "dummy:$model" --prompt-len 512 --gen-len 32 2> /dev/null | tee -a "$out/models.txt"
done
if [ -n "$llama_bench" ]; then
  cache=$(mktemp -d)
  python3 bench/vs_llama_cpp.py --spillway $bin/spillway --llama-bench "$llama_bench" --threads "$threads" --repeat 2 --inner 2 \
    --models llama-2-7b:q4_0,tinyllama-1.1b:f16,tinyllama-1.1b:q4_k_m --cache "$cache" --delete -o "$out/vs_llama_cpp.json" | tee "$out/vs_llama_cpp.txt"
  rm -rf "$cache"
fi
