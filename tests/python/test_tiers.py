# SPDX-License-Identifier: Apache-2.0
"""Models larger than the memory they may use, without a GPU: from disk, within budgets, the same text, nothing left behind."""

import json
import os
import resource
import shutil
import signal
import subprocess
import threading
import time

import pytest

from conftest import end_process

FAILED = 1
WRONG_USAGE = 2
MIB = 1 << 20
CPU = ["--device", "cpu"]
LARGE = "dummy:tinyllama-1.1b:q8_0"  # 1.1 GiB
LARGE_BUDGET_MIB = 700
LARGE_OPTIONS = [*CPU, "--host-memory", f"{LARGE_BUDGET_MIB}MiB", "--disk-memory", "4GiB"]
LARGE_ALONE = pytest.mark.xdist_group("large")  # these tests run one after the other: they take gigabytes of memory and disk, and one checks how much is free
WITHIN_MIB = 120  # allowed beyond the budget, for the program itself and memory that is not counted


def greedy(spillway, model, *options):
    return spillway.run("run", model, "-p", "The river", "-n", "24", "--temp", "0", "--deterministic", "--json", *CPU, *options)


def peak_rss_mib(command):
    """Runs the program to its end; returns its peak memory.

    The process's own high-water mark, read while it lives: wait4() reports at least the memory that this process had
    when it started the other, which is much after other tests.
    """
    peak = 0
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:

        def watch():
            nonlocal peak
            while process.poll() is None:
                try:
                    with open(f"/proc/{process.pid}/status") as status:
                        lines = dict(line.split(":", 1) for line in status)
                    # Before exec() the process is still a copy of this one.
                    if lines["Name"].strip() == "spillway" and "VmHWM" in lines:
                        peak = max(peak, int(lines["VmHWM"].split()[0]))
                except (FileNotFoundError, ProcessLookupError):
                    return
                time.sleep(0.005)

        watcher = threading.Thread(target=watch)
        watcher.start()
        output, error = process.communicate()
        watcher.join()
    assert process.returncode == 0, error.decode()
    assert peak > 0
    return json.loads(output), peak / 1024


@pytest.fixture
def disk(tmp_path):
    """An empty folder to be --disk-dir; nothing may be left in it."""
    folder = tmp_path / "disk"
    folder.mkdir()
    yield folder
    assert os.listdir(folder) == []


def needs_disk(folder, mib):
    if shutil.disk_usage(folder).free < mib * MIB:
        pytest.skip(f"{mib} MiB of disk are not free")


# The same results.


@pytest.mark.parametrize("weights", ["0,100,0", "0,50,50", "0,0,100", "30,30,40"])
@pytest.mark.parametrize("extra", [[], ["--compress-weights"], ["--no-mmap"]])
def test_the_text_does_not_depend_on_where_weights_are(spillway, tiny_model, disk, weights, extra):
    expected = greedy(spillway, tiny_model, *extra).json()
    options = ["--weights", weights, "--disk-memory", "1GiB", "--disk-dir", disk]
    assert greedy(spillway, tiny_model, *options, *extra).json()["ids"] == expected["ids"]


@pytest.mark.parametrize("kv_type", ["f16", "int8", "int4"])
def test_nor_on_where_the_kv_cache_is(spillway, tiny_model, disk, kv_type):
    expected = greedy(spillway, tiny_model, "--kv-type", kv_type).json()
    options = ["--kv", "0,0,100", "--disk-memory", "1GiB", "--disk-dir", disk, "--kv-type", kv_type]
    assert greedy(spillway, tiny_model, *options).json()["ids"] == expected["ids"]
    assert list(disk.iterdir()) == []


@pytest.mark.parametrize("activations", ["0,0,100", "20,30,50"])
def test_nor_on_where_activations_are(spillway, tiny_model, disk, activations):
    expected = greedy(spillway, tiny_model).json()
    options = ["--activations", activations, "--disk-memory", "1GiB", "--disk-dir", disk, "--chunk", "3"]
    assert greedy(spillway, tiny_model, *options).json()["ids"] == expected["ids"]
    assert list(disk.iterdir()) == []


def test_the_logits_do_not_either(spillway, tiny_folder, tmp_path, disk):
    numpy = pytest.importorskip("numpy")
    options = [*CPU, "--weights", "0,10,90", "--disk-memory", "1GiB", "--disk-dir", disk]
    ids = list(range(3, 60))
    expected = spillway.logits(tiny_folder, ids, tmp_path / "a", *CPU)
    numpy.testing.assert_array_equal(spillway.logits(tiny_folder, ids, tmp_path / "b", *options), expected)


def test_a_plan_from_a_file(spillway, tiny_model, tmp_path, disk):
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"weights": {"host": 40, "disk": 60}, "overlap": False}))
    options = ["--plan", plan, "--disk-memory", "1GiB", "--disk-dir", disk]
    assert greedy(spillway, tiny_model, *options).json()["ids"] == greedy(spillway, tiny_model).json()["ids"]


@LARGE_ALONE
def test_bench_measures_several_plans_one_after_the_other(spillway, tmp_path, disk):
    plans = []
    for i, on_disk in enumerate([0, 50, 100]):
        plans.append(tmp_path / f"{i}.json")
        plans[-1].write_text(json.dumps({"weights": {"host": 100 - on_disk, "disk": on_disk}}))
    options = [option for plan in plans for option in ("--plan", plan)]
    arguments = ["bench", "dummy:opt-125m", *CPU, *options, "--disk-memory", "1GiB", "--disk-dir", disk]
    done = spillway.run(*arguments, "--prompt-len", 8, "--gen-len", 3, "--repeat", 1, "--json")
    assert done.code == 0, done.err
    decoder = json.JSONDecoder()
    text, results = done.out.strip(), []
    while text:
        value, end = decoder.raw_decode(text)
        results.append(value)
        text = text[end:].strip()
    assert [round(result["plan"]["weights"]["disk"]) for result in results] == [0, 50, 100]
    read = [result["decode"]["links"]["disk_read_weights"]["bytes"] for result in results]
    assert read[0] == 0 and 0 < read[1] < read[2]
    # Two decode steps read all of the layers' matrices (12 * hidden^2 F16 values a layer) twice, and one layer is read ahead.
    layer = 12 * 768 * 768 * 2
    assert 22 * layer <= read[2] <= 26 * layer
    # Weights are made once: later they only change their homes.
    assert results[0]["weights_made"] > 0 and results[0]["weights_kept"] == 0
    assert [result["weights_made"] for result in results[1:]] == [0, 0]
    # Peaks are each plan's own, not those of the plan before.
    weights = [result["tiers"]["host"]["peak_bytes_by_tag"]["weights"] for result in results]
    assert weights[0] > weights[1] > weights[2]


# Budgets.


@LARGE_ALONE
def test_a_model_larger_than_its_budget_runs_from_disk(spillway, disk, report):
    needs_disk(disk, 2048)
    bench = ["bench", LARGE, *LARGE_OPTIONS, "--disk-dir", disk, "--json"]
    sizes = ["--prompt-len", "16", "--gen-len", "4", "--repeat", "1"]
    result, rss = peak_rss_mib(spillway.command(*bench, *sizes))
    assert result["weight_bytes"] > 1.4 * LARGE_BUDGET_MIB * MIB
    assert result["plan"]["weights"]["disk"] > 30
    tier = result["tiers"]["host"]
    assert tier["peak_bytes"] <= LARGE_BUDGET_MIB * MIB
    assert max(tier["peak_bytes_by_tag"].values()) <= tier["peak_bytes"]
    assert tier["peak_bytes"] > 0.8 * LARGE_BUDGET_MIB * MIB, "what there is should be used"
    report(f"{LARGE} in {LARGE_BUDGET_MIB} MiB: {rss:.0f} MiB resident at most, {tier['peak_bytes'] / MIB:.0f} MiB counted")
    assert rss < LARGE_BUDGET_MIB + WITHIN_MIB


@LARGE_ALONE
def test_and_says_the_same_as_in_memory(spillway, disk):
    needs_disk(disk, 2048)
    options = ["--ctx", "64", "--deterministic"]
    ids = [5, 900, 31, 7, 12000]
    expected = spillway.greedy(LARGE, ids, 6, *CPU, *options)
    assert spillway.greedy(LARGE, ids, 6, *LARGE_OPTIONS, "--disk-dir", disk, *options) == expected


@LARGE_ALONE
def test_a_real_file_larger_than_its_budget(spillway, chat_model, disk):
    """Packed matrices are written to --disk-dir, and the text is the same."""
    options = ["run", chat_model, "-p", "The river", "-n", "8", "--temp", "0", "--deterministic", "--ctx", "128", "--json", *CPU]
    expected = spillway.run(*options).json()
    command = spillway.command(*options, "--host-memory", "85MiB", "--disk-memory", "1GiB", "--disk-dir", disk)
    result, rss = peak_rss_mib(command)
    assert result["ids"] == expected["ids"]
    assert rss < 85 + WITHIN_MIB


@pytest.mark.parametrize(
    "options, names",
    [
        (["--host-memory", "20MiB"], "--host-memory"),
        (["--host-memory", "700MiB"], "--disk-memory"),
        (["--host-memory", "700MiB", "--disk-memory", "100MiB"], "--disk-memory"),
        (["--weights", "0,0,100", "--disk-memory", "100MiB"], "--disk-memory"),
    ],
)
def test_budgets_that_are_too_small_are_refused_before_work(spillway, disk, options, names):
    done = spillway.run("bench", LARGE, *CPU, *options, "--disk-dir", disk, "--prompt-len", 16, "--gen-len", 4)
    done.assert_one_line_error(FAILED)
    assert names in done.err


@pytest.mark.parametrize(
    "options, names",
    [
        (["--host-memory", "900MiB", "--weights", "0,100,0"], ["weights", "--host-memory"]),
        # The two slots for streamed layers do not fit beside the resident weights.
        (["--host-memory", "500MiB", "--weights", "0,25,75", "--disk-memory", "4GiB"], ["staging", "--host-memory"]),
        (["--host-memory", "900MiB", "--weights", "0,40,60", "--kv", "0,50,50", "--disk-memory", "700MiB"], ["KV cache", "--disk-memory"]),
    ],
)
def test_an_explicit_plan_that_cannot_fit_is_refused_before_work(spillway, disk, options, names):
    # If the program had begun to write weights, that would have failed first.
    faults = os.environ | {"SPILLWAY_FAULTS": "io.open:1+:eio,io.allocate:1+:eio"}
    sizes = ["--prompt-len", 500, "--gen-len", 12, "--batch", 40]
    done = spillway.run("bench", LARGE, *CPU, *options, "--disk-dir", disk, *sizes, env=faults)
    done.assert_one_line_error(FAILED)
    assert "the plan needs" in done.err
    for name in names:
        assert name in done.err


# The disk.


def test_a_full_disk_is_refused_before_work(spillway, disk):
    """No file may become that long, as with a quota."""

    def limited():
        resource.setrlimit(resource.RLIMIT_FSIZE, (64 * MIB, resource.RLIM_INFINITY))

    command = spillway.command("bench", LARGE, *LARGE_OPTIONS, "--disk-dir", disk, "--prompt-len", "16", "--gen-len", "4")
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=60, preexec_fn=limited)
    assert done.returncode == FAILED and done.stdout == b""
    assert b"--disk-dir" in done.stderr and done.stderr.count(b"\n") == 1


@LARGE_ALONE
@pytest.mark.parametrize("fault", ["io.write:2:eio", "io.write:3:enospc", "io.allocate:1:enospc", "io.read:9+:eio"])
def test_disk_trouble_is_one_line_and_leaves_nothing(spillway, disk, fault):
    needs_disk(disk, 2048)
    options = ["--prompt-len", "4", "--gen-len", "2", "--weights", "0,30,70", "--disk-memory", "4GiB", "--disk-dir", disk]
    done = spillway.run("bench", "dummy:opt-125m", *CPU, *options, env=os.environ | {"SPILLWAY_FAULTS": fault})
    done.assert_one_line_error(FAILED)


@pytest.mark.parametrize("fault", ["io.write:2:short", "io.write:1:eintr", "io.read:7:short", "io.read:5:eintr", "io.direct:1+:einval"])
def test_small_disk_trouble_is_not_reported(spillway, tiny_model, disk, fault):
    options = ["--weights", "0,0,100", "--compress-weights", "--disk-memory", "1GiB", "--disk-dir", disk]
    command = ["run", tiny_model, "-p", "The river", "-n", "9", "--temp", "0", "--deterministic", "--json", *CPU]
    expected = spillway.run(*command, "--compress-weights").json()
    assert spillway.run(*command, *options, env=os.environ | {"SPILLWAY_FAULTS": fault}).json()["ids"] == expected["ids"]


def test_a_folder_that_is_not_there(spillway, tmp_path):
    options = ["--disk-memory", "4GiB", "--weights", "0,30,70", "--disk-dir", tmp_path / "nowhere"]
    done = spillway.run("bench", "dummy:opt-125m", *CPU, *options)
    done.assert_one_line_error(WRONG_USAGE)
    assert "--disk-dir" in done.err


@LARGE_ALONE
@pytest.mark.parametrize("moment", ["writing", "running"])
def test_a_kill_leaves_no_file(spillway, disk, moment):
    needs_disk(disk, 2048)
    arguments = ["bench", LARGE, *LARGE_OPTIONS, "--disk-dir", disk, "--prompt-len", 16, "--gen-len", 2000]
    free = shutil.disk_usage(disk).free
    process = spillway.start(*arguments)
    try:
        if moment == "running":
            deadline = time.monotonic() + 60
            while count_read(process) < 1200 * MIB and process.poll() is None:
                assert time.monotonic() < deadline, "no weight was read within a minute"
                time.sleep(0.01)
        else:
            while not holds_unnamed_file(process, disk) and process.poll() is None:
                time.sleep(0.001)
        assert process.poll() is None
        assert os.listdir(disk) == [], "not even while it runs"
    finally:
        end_process(process)
    assert process.returncode == -signal.SIGKILL
    deadline = time.monotonic() + 20  # the system frees space with a delay, and other programs use the disk, too
    while shutil.disk_usage(disk).free < free - 512 * MIB:
        assert time.monotonic() < deadline, "the space is not free again"
        time.sleep(0.1)


def holds_unnamed_file(process, folder):
    descriptors = f"/proc/{process.pid}/fd"
    try:
        return any(os.readlink(f"{descriptors}/{n}").startswith(str(folder)) for n in os.listdir(descriptors))
    except FileNotFoundError:
        return False


def count_read(process):
    """Bytes that it has read from disks so far."""
    with open(f"/proc/{process.pid}/io") as file:
        return int(next(line for line in file if line.startswith("read_bytes")).split()[1])


# Option values that are no plan.


@pytest.mark.parametrize(
    "options, says",
    [
        (["--weights", "50,50"], "--weights"),
        (["--weights", "50,60,0"], "--weights"),
        (["--weights", "a,b,c"], "--weights"),
        (["--weights", "-1,101,0"], "--weights"),
        (["--weights", "nan,50,50"], "--weights"),
        (["--kv", "1,2,3"], "--kv"),
        (["--kv", "0,0,100"], "--kv"),
        (["--activations", "1,2,3"], "--activations"),
        (["--activations", "0,0,100"], "--activations"),
        (["--host-memory", "lots"], "--host-memory"),
        (["--host-memory", "0"], "--host-memory"),
        (["--disk-memory", "-3"], "--disk-memory"),
        (["--attention", "moon"], "moon"),
        (["--schedule", "later"], "later"),
        (["--cpu-attention", "101"], "--cpu-attention"),
        (["--micro-batch", "0"], "--micro-batch"),
        (["--plan", "nowhere.json"], "nowhere.json"),
    ],
)
def test_words_that_are_no_plan(spillway, tiny_model, options, says):
    done = greedy(spillway, tiny_model, *options)
    done.assert_one_line_error(WRONG_USAGE)
    assert says in done.err


@pytest.mark.parametrize(
    "text, says",
    [
        ("", "not JSON"),
        ("[]", "not a plan"),
        ('{"weight": {}}', "weight"),
        ('{"weights": 3}', "weights"),
        ('{"weights": {"gpu": 50}}', "weights"),
        ('{"weights": {"moon": 100}}', "moon"),
        ('{"weights": {"gpu": "all"}}', "weights.gpu"),
        ('{"kv": {"disk": 100}}', "--kv"),
        ('{"schedule": "later"}', "later"),
        ('{"schedule": 7}', "schedule"),
        ('{"micro_batch": -1}', "micro_batch"),
        ('{"micro_batch": 1.5}', "micro_batch"),
        ('{"micro_batches": -1}', "micro_batches"),
        ('{"cpu_attention": 200}', "cpu_attention"),
        ('{"overlap": "yes"}', "overlap"),
        ('{"overlap": true, "line\\nbreak": 1}', "break"),
    ],
)
def test_files_that_are_no_plan(spillway, tiny_model, tmp_path, text, says):
    plan = tmp_path / "plan.json"
    plan.write_text(text)
    done = greedy(spillway, tiny_model, "--plan", plan)
    done.assert_one_line_error(WRONG_USAGE)
    assert says in done.err
