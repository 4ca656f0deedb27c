#!/bin/sh
# Compares the ways to multiply weights on x86 with AMX, in about a minute: for machines that are lent for minutes.
#   bench/x86_linear.sh BUILD_FOLDER [OUT_FOLDER]
# BUILD_FOLDER has bench/linear_bench, bin/ceilings and bin/amx_probe. Prints a table: a line per type and number of tokens, a column per
# variant (GFLOP/s; GB/s of weights behind it), the best one last; OUT_FOLDER gets what it is made of. THREADS, COLD_MB and
# SECONDS_EACH (of a measurement) are taken from the environment.
set -eu
build=$1
out=${2:-$(mktemp -d)}
mkdir -p "$out"
threads=${THREADS:-$(nproc)}
common="--threads $threads --cold_mb ${COLD_MB:-720} --benchmark_min_time=${SECONDS_EACH:-0.1} --benchmark_format=csv"
lscpu | grep -E "Model name|Thread|Core|L1d|L2|L3" || true
"$build/bin/ceilings" --threads "$threads" | tee "$out/ceilings.txt"
"$build/bin/amx_probe" "$threads" | tee "$out/amx_probe.txt"

# Few tokens: the kernels that the device chooses, the F32 kernels, and the matrix kernels.
"$build/bench/linear_bench" $common --variant default --variant f32:half=1000,m2=1000 --variant gemm:m2=2 \
  --benchmark_filter='^linear/(BF16|F16)/llama-2-7b.up/tokens:(1|2|4|8|16|32)/' > "$out/few.csv" 2> "$out/few.log"

# Packed types: what counts is their share of the read loop's rate.
"$build/bench/linear_bench" $common --variant default \
  --benchmark_filter='^linear/(Q4_0|Q4_1|G4|Q8_0|Q2_K|Q3_K|Q4_K|Q5_K|Q6_K)/llama-2-7b.down/tokens:(1|2|4|8)/' \
  > "$out/packed.csv" 2> "$out/packed.log"

# Many tokens: stored rows against panels, with and without prefetching, and several ways to divide both.
set -- --variant default --variant noahead:ahead=0 --variant panels:direct=0 --variant direct:direct=512
set -- "$@" --variant nocut:cut=0 --variant cut8:cut=8 --variant xahead2:xahead=2
set -- "$@" --variant d2048:depth=2048,chunk=32 --variant d2048nocut:depth=2048,chunk=64,cut=0 --variant d512:depth=512,panels=8
set -- "$@" --variant p2:panels=2 --variant p8:panels=8 --variant chunk128:chunk=128 --variant chunk128cut8:chunk=128,cut=8
set -- "$@" --variant before:direct=0,depth=4096,panels=4,chunk=128,cut=16,xahead=2,ahead=0
"$build/bench/linear_bench" $common "$@" --benchmark_filter='^linear/BF16/llama-2-7b.up/tokens:(64|512)/' \
  > "$out/many.csv" 2> "$out/many.log"
# The same questions for packed weights and few rows, shorter.
"$build/bench/linear_bench" $common --variant default --variant noahead:ahead=0 --variant nocut:cut=0 --variant d2048:depth=2048,chunk=32 \
  --variant before:depth=4096,panels=4,chunk=128,cut=16,xahead=2,ahead=0 \
  --benchmark_filter='^linear/(Q4_0/llama-2-7b.up|F16/llama-2-7b.up|BF16/tinyllama.attn_kv)/tokens:512/' > "$out/other.csv" 2> "$out/other.log"

cat "$out/few.csv" "$out/packed.csv" "$out/many.csv" "$out/other.csv" | tr -d '"' | awk -F, '
  /^name,/ { for (i = 1; i <= NF; ++i) column[$i] = i; next }
  /^linear/ {
    split($1, part, "/"); row = part[2] "/" part[3] "/" part[4]
    if (!(row in lines)) { order[++count] = row; best[row] = 0 }
    flops = $(column["GFLOP/s"]); gbs = $(column["GB/s"])
    lines[row] = lines[row] sprintf("  %s %.0f (%.0f)", part[5], flops, gbs)
    if (flops > best[row]) { best[row] = flops; name[row] = part[5] }
  }
  END { for (i = 1; i <= count; ++i) print order[i] ":" lines[order[i]] "  BEST " name[order[i]] }' | tee "$out/table.txt"
