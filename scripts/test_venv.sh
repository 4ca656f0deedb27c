#!/usr/bin/env bash
# Makes the Python environment of tests/python if it is not there yet, and prints its path:
#   "$(scripts/test_venv.sh)/bin/python" -m pytest tests/python
set -euo pipefail

if (($# > 0)); then
  echo "usage: scripts/test_venv.sh   makes the environment of tests/requirements.txt, prints its path"
  if [[ $1 == -h || $1 == --help ]]; then exit 0; fi
  exit 2
fi
cd "$(dirname "${BASH_SOURCE[0]}")/.."
requirements=tests/requirements.txt
cache=${XDG_CACHE_HOME:-$HOME/.cache}/spillway
hash=$(sha256sum "$requirements")
venv=$cache/test-venv-${hash:0:12}

# The stamp is written last; the import detects an environment whose Python was removed since.
is_complete() { [[ -f $venv/complete ]] && "$venv/bin/python" -c 'import pytest' 2>/dev/null; }

if ! is_complete; then
  mkdir -p "$cache"
  exec 9>"$cache/test-venv.lock"
  flock 9
  if ! is_complete; then
    echo "making $venv" >&2
    rm -rf "$venv"
    trap 'if [[ ! -f $venv/complete ]]; then rm -rf "$venv"; fi' EXIT
    trap 'exit 1' INT TERM HUP
    {
      python3 -m venv "$venv"
      "$venv/bin/python" -m pip install --quiet --no-cache-dir --disable-pip-version-check --retries 2 --timeout 20 \
        --only-binary=:all: -r "$requirements"
    } >&2 9>&- </dev/null
    touch "$venv/complete"
  fi
fi
echo "$venv"
