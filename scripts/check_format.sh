#!/usr/bin/env bash
# Checks that all C++ sources, tracked or new, are formatted by .clang-format; --fix formats them.
set -euo pipefail

usage() { echo "usage: scripts/check_format.sh [--fix]"; }
mode=(--dry-run -Werror)
case "${1:-}" in
  "") ;;
  --fix) mode=(-i) ;;
  -h | --help) usage; exit 0 ;;
  *) usage >&2; exit 2 ;;
esac

cd "$(dirname "${BASH_SOURCE[0]}")/.."
# Version 14 exactly: others format the same file differently.
clang_format=$(command -v clang-format-14 || command -v clang-format || true)
if [[ -z $clang_format ]] || [[ $("$clang_format" --version) != *"version 14."* ]]; then
  echo "check_format: clang-format 14 is not installed (Debian package clang-format-14)" >&2
  exit 1
fi

patterns=('*.h' '*.cc' '*.cu' '*.cuh')
if git rev-parse --is-inside-work-tree >/dev/null 2>&1; then
  mapfile -d '' -t listed < <(git ls-files -z --cached --others --exclude-standard -- "${patterns[@]}")
else
  mapfile -d '' -t listed < <(find src tests bench -type f \( -name '*.h' -o -name '*.cc' -o -name '*.cu' -o -name '*.cuh' \) -print0)
fi
# A file deleted but not yet committed is still listed.
files=()
for file in "${listed[@]}"; do
  if [[ -f $file ]]; then files+=("$file"); fi
done
if ((${#files[@]} == 0)); then
  echo "check_format: no sources found" >&2
  exit 1
fi

if ! printf '%s\0' "${files[@]}" | xargs -0 -P "$(nproc)" -n 16 "$clang_format" "${mode[@]}"; then
  echo "check_format: run scripts/check_format.sh --fix" >&2
  exit 1
fi
echo "${#files[@]} files are formatted"
