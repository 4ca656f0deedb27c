#!/usr/bin/env bash
# Compares two builds of the program, cell by cell: kernels on the GPU, streaming weights, two cores of a CPU.
set -uo pipefail

if (($# < 3)) || [[ $1 == -* ]]; then
  cat <<'EOF'
usage: bench/before_after.sh BEFORE AFTER FOLDER [CELL...]
  BEFORE, AFTER  two executables of spillway
  FOLDER         a JSON for each cell goes there; a cell that has one is not repeated
Cells: plans (40 cases, same_plans.py); 7b-f16-1 7b-f16-32 7b-q4_k-1 7b-q4_k-32 7b-q4_k_m-1 7b-q4_k_m-32 13b-f16-8gib
opt-30b-f16-16gib on a GPU; smollm2-2-cores 1.1b-q4_0-2-cores. Each alternates five rounds (two_programs.py). Q4_K_M is a mix
of types, which random_gguf, beside AFTER, writes into the folder for temporary files.
EOF
  if [[ ${1:-} == -h || ${1:-} == --help ]]; then exit 0; fi
  exit 2
fi
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
before=$1 after=$2 folder=$3
shift 3
mkdir -p "$folder"

gpu="--device cuda" cpu="--device cpu --threads 2"
declare -A cells=(
  [7b-f16-1]="dummy:llama-2-7b --prompt-tokens 256 --tokens 64 -- $gpu --batch 1"
  [7b-f16-32]="dummy:llama-2-7b --prompt-tokens 256 --tokens 64 -- $gpu --batch 32"
  [7b-q4_k-1]="dummy:llama-2-7b:q4_k --prompt-tokens 256 --tokens 64 -- $gpu --batch 1"
  [7b-q4_k-32]="dummy:llama-2-7b:q4_k --prompt-tokens 256 --tokens 64 -- $gpu --batch 32"
  [7b-q4_k_m-1]="random:llama-2-7b:q4_k_m --prompt-tokens 256 --tokens 64 -- $gpu --batch 1"
  [7b-q4_k_m-32]="random:llama-2-7b:q4_k_m --prompt-tokens 256 --tokens 64 -- $gpu --batch 32"
  [13b-f16-8gib]="dummy:llama-2-13b --prompt-tokens 128 --tokens 16 -- $gpu --gpu-memory 8GiB --batch 1"
  [opt-30b-f16-16gib]="dummy:opt-30b --prompt-tokens 32 --tokens 5 -- $gpu --gpu-memory 16GiB --batch 64"
  [smollm2-2-cores]="dummy:smollm2-135m:q4_1 --prompt-tokens 256 --tokens 64 -- $cpu --batch 1"
  [1.1b-q4_0-2-cores]="dummy:tinyllama-1.1b:q4_0 --prompt-tokens 64 --tokens 32 -- $cpu --batch 1"
)
order=(7b-f16-1 7b-f16-32 7b-q4_k-1 7b-q4_k-32 7b-q4_k_m-1 7b-q4_k_m-32 13b-f16-8gib smollm2-2-cores 1.1b-q4_0-2-cores opt-30b-f16-16gib)
wanted=("$@")
if ((${#wanted[@]} == 0)); then wanted=(plans "${order[@]}"); fi

models=$(mktemp -d)
trap 'rm -rf "$models"' EXIT

# Prints the file of "random:SHAPE:TYPE", which is written at its first use; prints any other model unchanged.
model_of() { # MODEL
  local name=${1#random:}
  if [[ $name == "$1" ]]; then echo "$1"; return; fi
  local file=$models/${name//:/-}.gguf
  if [[ ! -f $file ]]; then "$(dirname "$after")/random_gguf" "$file" --model "${name%%:*}" --type "${name#*:}" --quiet || return; fi
  echo "$file"
}

for cell in "${wanted[@]}"; do
  out=$folder/$cell.json
  if [[ -f $out ]]; then continue; fi
  echo "== $cell"
  if [[ $cell == plans ]]; then
    python3 bench/same_plans.py "$before" "$after" -o "$out"
    continue
  fi
  read -ra words <<<"${cells[$cell]}"
  prefix=()
  if [[ $cell == *-2-cores ]]; then prefix=(taskset -c '0,1'); fi
  own=() options=() behind=0
  for word in "${words[@]:1}"; do
    if [[ $word == -- ]]; then behind=1; elif ((behind)); then options+=("$word"); else own+=("$word"); fi
  done
  model=$(model_of "${words[0]}") || exit 1
  "${prefix[@]}" python3 bench/two_programs.py "$before" "$after" --model "$model" --bench --rounds 5 \
    "${own[@]}" -o "$out" -- "${options[@]}"
done
