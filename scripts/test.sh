#!/usr/bin/env bash
# All checks and tests, as CI runs them. The last line is "N passed, N failed, N skipped", over everything that ran.
set -uo pipefail

# The test binaries that feed hostile or random input to the code: these also run under ASan and UBSan.
sanitizer_targets=(tensor_test cpu_test storage_test memory_test kv_test hostile_test fuzz_test text_test schedule_test engine_test serve_test parity_test generation_test)
# The ones with threads of their own: these also run under ThreadSanitizer.
tsan_targets=(base_test storage_test memory_test kv_test serve_test placement_test)
# Of these the long ones repeat what the others do with threads.
tsan_filter='-*LogitsDoNotDependOnWhereThingsAre*:*NorOnTheTypesOfWeightsAndKv*:*WithoutDeterministicMode*:*ToOneToken*:*NorOnWhereThingsAreWithoutAGpu*:*SpanningTest*:*TenThousandCorruptions*'
# And of another one only those with a thread that owns the engine.
tsan_loop_target=generation_test
tsan_loop_filter='EngineLoop*'
# The whole server under both: what asks it many things at once, leaves in the middle, breaks HTTP, fails its disk, and
# ends it. About a minute each; the other tests of the server repeat what these do, or look at the clock.
server_tests=(
  tests/python/test_serve_api.py
  tests/python/test_serve_client.py
  tests/python/test_serve_hostile.py::test_wrong_http
  tests/python/test_serve_life.py::test_a_disk_that_fails_costs_the_requests_of_a_step
  tests/python/test_serve_life.py::test_a_second_interrupt_ends_it_at_once
  tests/python/test_serve_life.py::test_an_idle_server_ends_at_once
  tests/python/test_serve_load.py::test_clients_that_vanish_cost_nothing
  tests/python/test_serve_load.py::test_mixed_clients_have_the_answers_they_would_have_alone
)
# Drains wait for long answers: too long with ThreadSanitizer.
asan_server_tests=("tests/python/test_serve_life.py::test_a_drain_finishes_what_is_under_way["{0..2}"]")
test_timeout_s=300
sanitizer_timeout_s=900  # of a whole binary

usage() {
  cat <<'EOF'
usage: scripts/test.sh [--quick] [--no-deps]
  --quick     only build/release and its tests labelled unit: no checks, no sanitizers, no Python
  --no-deps   do not install packages
Exit codes: 0 all passed, 1 something failed or no test ran, 2 wrong usage.
EOF
}

quick=0
install_packages=1
for option in "$@"; do
  case "$option" in
    --quick) quick=1 ;;
    --no-deps) install_packages=0 ;;
    -h | --help) usage; exit 0 ;;
    *) usage >&2; exit 2 ;;
  esac
done

exec </dev/null
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
export CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=1  # another clone's objects serve here too
summary=()  # arguments of test_summary.py
timings=()  # "12 s  name"
sanitized=()  # the sanitizer targets that exist
results=build/test-results
rm -rf "$results"
mkdir -p "$results"

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
  scripts/configure.sh "$preset" && cmake --build "build/$preset" --parallel "$jobs" ${1:+--target "$@"}
}

run_ctest() { # BUILD REPORT [OPTION...]
  local build=$1 report=$2
  shift 2
  ctest --test-dir "$build" -j "$(nproc)" --timeout "$test_timeout_s" --output-on-failure --no-tests=error \
    --output-junit "$PWD/$report" "$@"
}

# Release: everything is built, so a test that is not there fails.
test_release() {
  local options=()
  if ((quick)); then options=(-L unit); fi
  run_ctest build/release "$results/release.xml" "${options[@]}"
}

# The sanitizer targets that this tree has.
existing_sanitizer_targets() {
  local known target
  known=$(ninja -C build/debug -t targets all)
  for target in "${sanitizer_targets[@]}"; do
    if grep -qFx "$target: phony" <<<"$known"; then echo "$target"; fi
  done
}

build_sanitized() {
  scripts/configure.sh debug && mapfile -t sanitized < <(existing_sanitizer_targets) || return 1
  echo "targets: ${sanitized[*]:-none}"
  if ((${#sanitized[@]} == 0)); then return 1; fi
  cmake --build build/debug --parallel "$jobs" --target "${sanitized[@]}" spillway
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
test_sanitized() { run_sanitized sanitized build/debug '*' "${sanitized[@]}"; }

# The kernels of processors with fewer instructions, where this one can play them: what is left out, one after the other.
fewer_instructions=("bf16" "i8mm,bf16" "fp16fml,i8mm,bf16" "dotprod,fp16fml,bf16" "amx" "avx512_bf16" "avx512" "avx512,avx_vnni" "avx2")
test_fewer_instructions() {
  local without features target seen status=0
  seen=$(build/release/src/cpu/cpu_test --features)
  echo "this processor: $seen"
  for without in "${fewer_instructions[@]}"; do
    features=$(build/release/src/cpu/cpu_test --features "--without=$without") || { status=1; continue; }
    if grep -qFx "$features" <<<"$seen"; then continue; fi
    seen+=$'\n'$features
    echo "without $without: $features"
    for target in src/cpu/cpu_test tests/parity/parity_test; do
      timeout --kill-after=10 "$sanitizer_timeout_s" "build/release/$target" "--without=$without" --gtest_brief=1 \
        "--gtest_output=xml:$PWD/$results/$(basename "$target")-$without.xml" || status=1
      summary+=("without $without: $(basename "$target")=$results/$(basename "$target")-$without.xml")
    done
    if [[ -n $python ]]; then
      SPILLWAY_BIN=$PWD/build/release/bin/spillway "$python" -m pytest tests/python/test_tuning.py tests/python/test_stories.py -q -rs \
        -p no:cacheprovider --without-cpu-features "$without" --junitxml "$results/python-$without.xml" || status=1
      summary+=("without $without: python=$results/python-$without.xml")
    fi
  done
  return "$status"
}

build_tsan() { build tsan "${tsan_targets[@]}" "$tsan_loop_target" spillway; }
test_tsan() {
  local status=0
  run_sanitized tsan build/tsan "$tsan_filter" "${tsan_targets[@]}" || status=1
  run_sanitized tsan build/tsan "$tsan_loop_filter" "$tsan_loop_target" || status=1
  return "$status"
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

# In one process per core, where pytest-xdist is there: most tests wait for a program that has no work for two.
test_python() {
  local options=()
  if "$python" -c 'import xdist' 2>/dev/null; then options=(-n "$(nproc)" --dist loadgroup); fi
  SPILLWAY_BIN=$PWD/build/release/bin/spillway "$python" -m pytest tests/python -q -rs -p no:cacheprovider \
    "${options[@]}" --durations=10 --junitxml "$results/python.xml"
}

# Some of the server's tests with the program of a sanitizer, which ends with a code of its own when it finds something.
test_server() { # NAME BUILD [TEST...]
  local options=()
  if "$python" -c 'import xdist' 2>/dev/null; then options=(-n "$(nproc)" --dist loadgroup); fi
  SPILLWAY_BIN=$PWD/$2/bin/spillway ASAN_OPTIONS=detect_leaks=1:strict_string_checks=1 UBSAN_OPTIONS=print_stacktrace=1 \
    TSAN_OPTIONS=halt_on_error=1 timeout --kill-after=10 "$sanitizer_timeout_s" \
    "$python" -m pytest "${server_tests[@]}" "${@:3}" -q -rs -p no:cacheprovider "${options[@]}" --junitxml "$results/$1-server.xml"
}

test_server_with() { # WHAT NAME BUILD [TEST...]
  if [[ -z $python ]]; then
    summary+=(--skipped "the server with $1=no Python environment could be made")
    return
  fi
  stage "test the server with $1" test_server "${@:2}"
  summary+=("$2 server=$results/$2-server.xml")
}

check_shell() {
  if ! command -v shellcheck >/dev/null; then
    echo "shellcheck is not installed; not checked"
    return 0
  fi
  shellcheck scripts/*.sh .ci/run && echo "shell scripts are clean"
}

run_all() {
  if ((install_packages)) && ! stage "packages" scripts/install_deps.sh test; then
    summary+=(--failed "packages")
    return
  fi
  jobs=$(scripts/jobs.sh)

  if ((quick == 0)); then
    stage "python environment" make_python
    stage "model" scripts/fetch_model.sh smollm2 || echo "warning: no model; the tests that need it are skipped" >&2
    stage "chat templates" "${python:-python3}" tests/fetch_chat_templates.py ||
      echo "warning: not all chat templates could be fetched; the tests of those that are missing are skipped" >&2
    must "include check" python3 scripts/check_includes.py
    must "unused names" python3 scripts/check_unused.py
    must "documentation check" python3 scripts/check_docs.py
    must "format check" scripts/check_format.sh
    must "shell check" check_shell
  fi

  if stage "build release" build release; then
    stage "test release" test_release
    summary+=("release=$results/release.xml")
    if ((quick == 0)); then must "test with fewer instructions" test_fewer_instructions; fi
  else
    summary+=(--failed "build release")
  fi
  if ((quick)); then return; fi

  if stage "build with ASan and UBSan" build_sanitized; then
    stage "test with ASan and UBSan" test_sanitized
    test_server_with "ASan and UBSan" sanitized build/debug "${asan_server_tests[@]}"
  else
    summary+=(--failed "build with ASan and UBSan")
  fi
  if stage "build with ThreadSanitizer" build_tsan; then
    stage "test with ThreadSanitizer" test_tsan
    test_server_with "ThreadSanitizer" tsan build/tsan
  else
    summary+=(--failed "build with ThreadSanitizer")
  fi
  if [[ -n $python ]]; then
    stage "python tests" test_python
    summary+=("python=$results/python.xml")
  else
    summary+=(--skipped "tests/python=no Python environment could be made")
  fi
}

run_all
echo
echo "== time"
printf '%s\n' "${timings[@]}"
printf '%5d s  in all\n' "$SECONDS"
echo
echo "== summary"
python3 scripts/test_summary.py "${summary[@]}"
