#!/usr/bin/env bash
# From a fresh clone to generated text: packages, build, a small model, one prompt. Cheap to run again.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
spillway=$root/build/product/bin/spillway
# `run` continues a text as it stands (`chat` answers questions), so this is the beginning of one.
prompt="Once upon a time, a river met a dam, and"

usage() {
  cat <<'EOF'
usage: scripts/quickstart.sh [--no-run] [--no-deps]
  --no-run    prepare everything, generate nothing
  --no-deps   do not install packages (they are there, or come from elsewhere)
Installs the Debian packages (as root or through sudo), builds build/product, fetches a 94 MiB model into the cache, and
runs it on one prompt. The second run takes seconds.
EOF
}

run_model=1
install_packages=1
for option in "$@"; do
  case "$option" in
    --no-run) run_model=0 ;;
    --no-deps) install_packages=0 ;;
    -h | --help) usage; exit 0 ;;
    *) usage >&2; exit 2 ;;
  esac
done
steps=$((2 + install_packages + run_model))

cd "$root"
export CCACHE_BASEDIR=$root CCACHE_NOHASHDIR=1  # another clone's objects serve here too
step_number=0
step() {
  step_number=$((step_number + 1))
  echo "[$step_number/$steps] $* (at ${SECONDS} s)"
}

if ((install_packages)); then
  step "packages"
  scripts/install_deps.sh product
fi

step "build"
jobs=$(scripts/jobs.sh)
# CUDA kernels are built for the GPUs that a driver shows; without one they would take minutes for nothing.
gpus=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | tr -d '. ' | sort -u | sed 's/^90$/90a/; s/$/-real/' |
  paste -sd ';' -) || gpus=''
if [[ $gpus =~ ^[0-9] ]]; then
  scripts/configure.sh product -DSPILLWAY_CUDA=AUTO "-DSPILLWAY_CUDA_ARCHS=$gpus"
else
  scripts/configure.sh product -DSPILLWAY_CUDA=OFF
fi
cmake --build build/product --parallel "$jobs"

step "model"
fetched=1
scripts/fetch_model.sh smollm2 || fetched=0
if ((fetched == 0)); then
  echo "quickstart: the program is built (build/product/bin/spillway), but there is no model to try it with" >&2
  exit 1
fi

if ((run_model)); then
  step "run"
  echo "\$ spillway run smollm2 -p \"$prompt\" -n 64"
  "$spillway" run smollm2 -p "$prompt" -n 64 </dev/null
fi

if [[ $gpus =~ ^[0-9] && $("$spillway" --version) == *"no CUDA"* ]]; then
  echo "quickstart: warning: the GPU is not used, as no nvcc was found; install NVIDIA's CUDA toolkit and run this again" >&2
fi

cat <<EOF

done in ${SECONDS} s. Next:
  build/product/bin/spillway chat smollm2            talk to it
  build/product/bin/spillway inspect smollm2         what is in the file, what it needs
  build/product/bin/spillway run MODEL -p "Hello"    MODEL: a GGUF file or a Hugging Face folder
  build/product/bin/spillway --help                  all commands
EOF
