# shellcheck shell=bash disable=SC2154  # test.sh sets jobs
# Stages of scripts/test.sh: each runs under a heading, its time is kept, and what it found goes into the summary.

summary=()  # arguments of test_summary.py
timings=()  # "12 s  name"
results=build/test-results
test_timeout_s=300
sanitizer_timeout_s=900  # for a whole binary

# stage NAME COMMAND...: runs it under a heading, keeps its time, hands its status on.
stage() {
  local name=$1 start=$SECONDS status=0
  shift
  echo
  echo "== $name"
  "$@" || status=$?
  timings+=("$(printf '%5d s  %s' $((SECONDS - start)) "$name")$([[ $status == 0 ]] || echo '  FAILED')")
  return "$status"
}
# A stage whose failure counts as one failed test.
must() { stage "$@" || summary+=(--failed "$1"); }

build() { # PRESET [TARGET...]
  local preset=$1
  shift
  configure "$preset" && cmake --build "build/$preset" --parallel "$jobs" ${1:+--target "$@"}
}

# Without a GPU it is enough to see that CUDA code compiles: to PTX, for one architecture. --full makes machine code.
configure() { # PRESET
  local options=()
  if [[ $1 == release ]] && ! nvidia-smi >/dev/null 2>&1; then
    options=(-DSPILLWAY_CUDA_ARCHS=90a-virtual)
  fi
  scripts/configure.sh "$1" "${options[@]}"
}

# Half as many again as there are processors: tests of waits and of emulated delays leave them idle.
run_ctest() { # BUILD REPORT [OPTION...]
  local build=$1 report=$2
  shift 2
  ctest --test-dir "$build" -j "$(($(nproc) * 3 / 2))" --timeout "$test_timeout_s" --output-on-failure --no-tests=error \
    --output-junit "$PWD/$report" "$@"
}

# Runs the binaries of a sanitizer, one process each, all at once: the leak check at the end of a process takes seconds
# on some machines, too long for ctest's one process per test.
run_sanitized() { # NAME BUILD FILTER TARGET...
  local name=$1 build=$2 filter=$3 target status failed=0 processes=()
  shift 3
  for target in "$@"; do
    ASAN_OPTIONS=detect_leaks=1:strict_string_checks=1 UBSAN_OPTIONS=print_stacktrace=1 \
      timeout --kill-after=10 "$sanitizer_timeout_s" "$(find "$build" -type f -name "$target" -perm -u+x -print -quit)" \
      --gtest_brief=1 "--gtest_filter=$filter" "--gtest_output=xml:$PWD/$results/$name-$target.xml" \
      >"$results/$name-$target.log" 2>&1 &
    processes+=($!)
  done
  for target in "$@"; do
    status=0
    wait "${processes[0]}" || status=$?
    processes=("${processes[@]:1}")
    summary+=("$name $target=$results/$name-$target.xml")
    if ((status == 0)); then
      echo "$target: $(tail -n 1 "$results/$name-$target.log")"
      continue
    fi
    failed=1
    cat "$results/$name-$target.log"
    echo "$target: exit code $status"
    # All tests may have passed, and the process not: a leak at its end, a race.
    if [[ -f $results/$name-$target.xml ]] && ! grep -q '<failure' "$results/$name-$target.xml"; then
      summary+=(--failed "$name $target, exit code $status after its tests")
    fi
  done
  return "$failed"
}

# Builds and runs test binaries under a sanitizer.
sanitized() { # NAME PRESET FILTER TARGET...
  local name=$1 preset=$2 filter=$3
  shift 3
  if stage "build $name: $*" build "$preset" "$@"; then
    stage "test $name: $*" run_sanitized "$name" "build/$preset" "$filter" "$@"
  else
    summary+=(--failed "build $name: $*")
  fi
}

python=
make_python() {
  local venv
  if venv=$(scripts/test_venv.sh); then
    python=$venv/bin/python
  elif python3 -c 'import pytest' 2>/dev/null; then
    python=python3
    echo "warning: no environment for tests/requirements.txt could be made; using the system's Python and what it has" >&2
  else
    echo "warning: no environment for tests/requirements.txt could be made (no network?): Python tests are skipped" >&2
    return 1
  fi
  echo "$python"
}

# pytest in one process per core, where pytest-xdist is there: most tests wait for a program that has no work for two.
run_pytest() { # REPORT BUILD [OPTION|TEST...]
  local report=$1 build=$2 options=()
  shift 2
  if "$python" -c 'import xdist' 2>/dev/null; then options=(-n "$(nproc)" --dist loadgroup); fi
  SPILLWAY_BIN=$PWD/$build/bin/spillway "$python" -m pytest -q -rs -p no:cacheprovider "${options[@]}" --durations=10 \
    --junitxml "$results/$report.xml" "$@"
}

python_tests() { # NAME [OPTION|TEST...]
  local name=$1
  shift
  if [[ -z $python ]]; then
    summary+=(--skipped "$name=no Python environment could be made")
    return
  fi
  stage "$name" run_pytest "${name// /-}" build/release "$@"
  summary+=("$name=$results/${name// /-}.xml")
}

# Tests of the server with the program of a sanitizer, which ends with a code of its own when it finds something.
sanitized_server() { # NAME PRESET TEST...
  local name=$1 preset=$2
  shift 2
  if [[ -z $python ]]; then
    summary+=(--skipped "$name server=no Python environment could be made")
    return
  fi
  if stage "build $name: the program" build "$preset" spillway; then
    stage "test $name: the server" env ASAN_OPTIONS=detect_leaks=1:strict_string_checks=1 UBSAN_OPTIONS=print_stacktrace=1 \
      TSAN_OPTIONS=halt_on_error=1 timeout --kill-after=10 "$sanitizer_timeout_s" bash -c "$(declare -f run_pytest)
        python='$python' results='$results' run_pytest '$name-server' 'build/$preset' \"\$@\"" run_pytest "$@"
    summary+=("$name server=$results/$name-server.xml")
  else
    summary+=(--failed "build $name: the program")
  fi
}
