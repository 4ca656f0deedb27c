#!/usr/bin/env bash
# Checks and tests, as CI runs them. The last line is "N passed, N failed, N skipped", over everything that ran.
set -uo pipefail

usage() {
  cat <<'USAGE'
usage: scripts/test.sh [--quick | --full | --ci | --part NAME] [--no-deps] [--fresh]
  (nothing)    what to wait for before a commit: checks, release build and its tests, the Python tests that are not
               long, and ASan with UBSan on everything that reads a stranger's input
  --quick      only build/release and its tests labelled unit: no checks, no sanitizers, no Python
  --full       everything: the default, then the ten parts below. Parts that passed with the same sources are not
               repeated, so an interrupted run goes on where it was
  --ci         the default and one of the ten parts: the number of commits modulo ten
  --part NAME  one part alone: asan-kernels asan-state asan-generation asan-server tsan-threads tsan-engine tsan-server
               instructions python-long sources
  --no-deps    do not install packages
  --fresh      with --full: repeat also what passed
Exit codes: 0 all passed, 1 something failed or no test ran, 2 wrong usage.
USAGE
}

exec </dev/null
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
source scripts/test/stages.sh
source scripts/test/parts.sh

mode=default
part=
install_packages=1
fresh=0
while (($#)); do
  case "$1" in
    --quick | --full | --ci) mode=${1#--} ;;
    --part)
      mode=part
      part=${2:-}
      if [[ " ${part_names[*]} " != *" $part "* || -z $part ]]; then usage >&2; exit 2; fi
      shift
      ;;
    --no-deps) install_packages=0 ;;
    --fresh) fresh=1 ;;
    -h | --help) usage; exit 0 ;;
    *) usage >&2; exit 2 ;;
  esac
  shift
done

# Tests of code that reads untrusted files, requests and templates: always under ASan and UBSan.
stranger_targets=(text_test hostile_test fuzz_test http_test)

# Tests that read thousands of damaged files: every run has them under ASan, so the release tests leave them out.
only_asan='HfHostileTest|GgufHostileTest|TorchHostileTest'

check_shell() {
  if ! command -v shellcheck >/dev/null; then
    echo "shellcheck is not installed; not checked"
    return 0
  fi
  shellcheck -x scripts/*.sh scripts/test/*.sh .ci/run && echo "shell scripts are clean"
}

prepare() {
  stage "python environment" make_python
  stage "model" scripts/fetch_model.sh smollm2 || echo "warning: no model; the tests that need it are skipped" >&2
  stage "chat templates" "${python:-python3}" tests/fetch_chat_templates.py ||
    echo "warning: not all chat templates could be fetched; the tests of those that are missing are skipped" >&2
}

check() {
  must "include check" python3 scripts/check_includes.py
  must "unused names" python3 scripts/check_unused.py
  must "plans are made once" python3 scripts/check_plan_once.py
  must "documentation check" python3 scripts/check_docs.py
  must "words" python3 scripts/check_words.py
  must "format check" scripts/check_format.sh
  must "shell check" check_shell
}

test_release() { # [CTEST OPTION...]
  stage "test release" run_ctest build/release "$results/release.xml" "$@"
  summary+=("release=$results/release.xml")
}

# Builds the program and its tests; benchmarks only if tests run them (the part `sources` builds them all).
build_release() { stage "build release" build release tested || { summary+=(--failed "build release"); return 1; }; }

run_default() {
  check
  if build_release; then
    test_release -E "$only_asan"
    python_tests "python tests" tests/python -m 'not long'
  fi
  sanitized asan debug "-$asan_long" "${stranger_targets[@]}"
}

# Runs one part unless it has passed with these very sources. Its results are stored for the summary.
run_part_once() { # NAME
  local name=$1 mark=build/test-results/passed-$1 tree before=${#summary[@]} failed=0 line
  tree=$(git rev-parse HEAD 2>/dev/null; git status --porcelain 2>/dev/null; git diff HEAD 2>/dev/null | sha256sum)
  if ((fresh == 0)) && [[ -f $mark && $(cat "$mark") == "$tree" ]]; then
    echo "part $name passed before with these sources; --fresh repeats it"
    timings+=("    -    part $name: passed before")
    return
  fi
  rm -f "$mark"
  run_part "$name"
  for line in "${summary[@]:before}"; do if [[ $line == --failed ]]; then failed=1; fi; done
  if ((failed == 0)) && python3 scripts/test_summary.py "${summary[@]:before}" >/dev/null; then echo "$tree" >"$mark"; fi
}

run_all() {
  if ((install_packages)) && ! stage "packages" scripts/install_deps.sh test; then
    summary+=(--failed "packages")
    return
  fi
  jobs=$(scripts/jobs.sh)
  if [[ $mode == quick ]]; then
    if build_release; then test_release -L unit; fi
    return
  fi
  prepare
  case "$mode" in
    part)
      if [[ $part == instructions || $part == python-long ]]; then build_release || return; fi
      run_part "$part"
      ;;
    default) run_default ;;
    ci)
      run_default
      run_part "${part_names[$(($(git rev-list --count HEAD 2>/dev/null || echo 0) % ${#part_names[@]}))]}"
      ;;
    full)
      run_default
      for part in "${part_names[@]}"; do run_part_once "$part"; done
      ;;
  esac
}

mkdir -p "$results"
find "$results" -type f ! -name 'passed-*' -delete
run_all
echo
echo "== time"
printf '%s\n' "${timings[@]}"
printf '%5d s  in all\n' "$SECONDS"
echo
echo "== summary"
python3 scripts/test_summary.py "${summary[@]}"
