# shellcheck shell=bash disable=SC2154  # stages.sh has the variables
# The ten parts that `scripts/test.sh --full` runs beside the default stages. CI takes one of them for each commit, the
# number of commits modulo ten, so a part may take ten minutes on two cores, its builds included.

# shellcheck disable=SC2034  # test.sh reads it
part_names=(asan-kernels asan-state asan-generation asan-server tsan-threads tsan-engine tsan-server instructions python-long sources)

# Under ThreadSanitizer the longest placement tests repeat what others do with threads.
tsan_filter='-*LogitsDoNotDependOnWhereThingsAre*:*NorOnTheTypesOfWeightsAndKv*:*WithoutDeterministicMode*:*ToOneToken*:*NorOnWhereThingsAreWithoutAGpu*:*SpanningTest*:*TenThousandCorruptions*'

# Limits of memory and of work, reached with tens of megabytes: a minute with ASan, and without it in every run.
asan_long='AmplificationTest.*:TorchAmplificationTest.*:HostileTemplateTest.EndlessWorkIsCutOff'

# The server under a sanitizer: many clients, clients that leave in the middle, broken HTTP, a failing disk, and its end.
# About a minute; the other tests of the server repeat what these do, or depend on the clock.
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

part_asan-kernels() { sanitized asan debug '*' tensor_test cpu_test parity_test; }
part_asan-state() { sanitized asan debug '*' storage_test memory_test kv_test schedule_test engine_test; }
part_asan-generation() { sanitized asan debug '*' generation_test serve_test; }
part_asan-server() {
  sanitized_server asan debug "${server_tests[@]}" "${asan_server_tests[@]}"
  sanitized asan-long debug "$asan_long" text_test hostile_test
}
part_tsan-threads() { sanitized tsan tsan "$tsan_filter" base_test storage_test memory_test kv_test http_test serve_test; }
part_tsan-engine() {
  sanitized tsan tsan "$tsan_filter" placement_test
  sanitized tsan-loop tsan 'EngineLoop*' generation_test
}
part_tsan-server() { sanitized_server tsan tsan "${server_tests[@]}"; }

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
      run_pytest "python-$without" build/release tests/python/test_tuning.py tests/python/test_stories.py \
        --without-cpu-features "$without" || status=1
      summary+=("without $without: python=$results/python-$without.xml")
    fi
  done
  return "$status"
}
part_instructions() { must "test with fewer instructions" test_fewer_instructions; }

part_python-long() {
  python_tests "long python tests" tests/python -m long
  stage "test release: hostile files" run_ctest build/release "$results/release-hostile.xml" -R "$only_asan"
  summary+=("release, hostile files=$results/release-hostile.xml")
}

# Sources as they stand: each includes what it uses, benchmarks build, CUDA becomes machine code, fuzzers find nothing new.
part_sources() {
  must "sources without precompiled headers" scripts/check_sources_alone.py
  must "build benchmarks" build release all
  if command -v nvcc >/dev/null || [[ -x /usr/local/cuda/bin/nvcc ]]; then
    must "build CUDA machine code" build_machine_code
  fi
  if command -v clang++ >/dev/null; then
    local target
    for target in http_request chat_template api_request; do must "fuzz $target" scripts/fuzz.sh "$target" 60; done
  else
    summary+=(--skipped "fuzzing=clang++ is not installed")
  fi
}
build_machine_code() {
  scripts/configure.sh plain -DSPILLWAY_CUDA=ON -DSPILLWAY_CUDA_ARCHS=90a-real &&
    cmake --build build/plain --parallel "$jobs" --target spw_cuda
}

run_part() { # NAME
  "part_$1"
}
