#!/usr/bin/env bash
# Runs clang-tidy over changed sources, with the compile commands of build/plain.
set -euo pipefail

usage() {
  cat <<'EOF'
usage: scripts/tidy.sh [--all | --since COMMIT | FILE...]
  (nothing)        .cc files changed since the last commit, and new ones
  --since COMMIT   .cc files changed since COMMIT
  --all            every .cc file of the build
Needs clang-tidy and a configured build/plain (scripts/configure.sh plain).
EOF
}

cd "$(dirname "${BASH_SOURCE[0]}")/.."
database=build/plain/compile_commands.json
files=()
case "${1:-}" in
  -h | --help) usage; exit 0 ;;
  --all) mapfile -t files < <(git ls-files --cached --others --exclude-standard -- '*.cc') ;;
  --since | "")
    if [[ ${1:-} == --since && -z ${2:-} ]]; then usage >&2; exit 2; fi
    mapfile -t files < <(
      git diff --name-only --diff-filter=d "${2:-HEAD}" -- '*.cc'
      git ls-files --others --exclude-standard -- '*.cc'
    )
    ;;
  -*) usage >&2; exit 2 ;;
  *) files=("$@") ;;
esac

clang_tidy=$(command -v clang-tidy-14 || command -v clang-tidy || true)
if [[ -z $clang_tidy ]]; then
  echo "tidy: clang-tidy is not installed (Debian package clang-tidy)" >&2
  exit 1
fi
if [[ ! -f $database ]]; then
  echo "tidy: $database is missing; run scripts/configure.sh plain" >&2
  exit 1
fi

# A file that is in no target has no compile command.
known=()
for file in "${files[@]}"; do
  if [[ -f $file ]] && grep -qF "/$file\"" "$database"; then known+=("$file"); else echo "tidy: not in the build, left out: $file" >&2; fi
done
if ((${#known[@]} == 0)); then
  echo "nothing to check"
  exit 0
fi
printf '%s\0' "${known[@]}" | xargs -0 -P "$(scripts/jobs.sh)" -n 1 "$clang_tidy" --quiet -p build/plain
echo "${#known[@]} files checked"
