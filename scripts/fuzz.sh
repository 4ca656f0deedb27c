#!/usr/bin/env bash
# Builds a fuzzer and runs it from its seeds: its findings and its corpus stay in build/fuzz.
set -euo pipefail

usage() {
  cat <<'EOT'
usage: scripts/fuzz.sh TARGET [SECONDS] [LIBFUZZER_OPTION...]
  TARGET    a folder of tests/fuzz/seeds: http_request, chat_template, api_request
  SECONDS   how long (default 300)
Needs clang (Debian package clang). Exit codes: 0 nothing found, 2 wrong usage, others: something was found, and its
input is in build/fuzz/findings. A finding becomes a seed once it is fixed.
EOT
}

if [[ ${1:-} == -h || ${1:-} == --help ]]; then usage; exit 0; fi
cd "$(dirname "${BASH_SOURCE[0]}")/.."
target=${1:-}
seconds=${2:-300}
seeds=tests/fuzz/seeds/$target
if [[ -z $target || ! -d $seeds || ! $seconds =~ ^[0-9]+$ ]]; then usage >&2; exit 2; fi
if ! command -v clang++ >/dev/null; then
  echo "fuzz: clang++ is not installed (Debian package clang)" >&2
  exit 2
fi

scripts/configure.sh fuzz
cmake --build build/fuzz --parallel "$(scripts/jobs.sh)" --target "${target}_fuzzer"
corpus=build/fuzz/corpus/$target
mkdir -p "$corpus" build/fuzz/findings
"build/fuzz/tests/fuzz/${target}_fuzzer" "-max_total_time=$seconds" -max_len=16384 -timeout=10 -rss_limit_mb=2048 \
  "-dict=tests/fuzz/$target.dict" "-artifact_prefix=build/fuzz/findings/$target-" -print_final_stats=1 "${@:3}" "$corpus" "$seeds"
