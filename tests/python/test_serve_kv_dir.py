# SPDX-License-Identifier: Apache-2.0
"""spillway serve --kv-dir: stored KV survives the end and the kill of the process, and damage to its files is found."""

import os
import pathlib
import random
import re

import pytest

from serve_checks import Server, wait_for

# So large a model that loading KV is faster than computing it; for a tiny model it is not, and nothing is loaded.
MODEL = "dummy:smollm2-135m:q4_0"
PROMPT = [3 + (n * 37) % 200 for n in range(100)]
SMALL = ["-c", "512", "--max-sequences", "4"]
WHOLE = len(PROMPT) // 16 * 16
ON_DISK = 'spillway_kv_store_blocks{tier="disk"}'
FROM_DISK = 'spillway_prefix_hit_tokens_total{tier="disk"}'
DAMAGED = "spillway_kv_store_damaged_total"


def start(spillway, tmp_path, *options):
    return Server(spillway, MODEL, tmp_path, *SMALL, "--kv-dir", tmp_path / "kv", *options)


def ids(server, prompt=PROMPT):
    return server.complete(prompt=prompt, max_tokens=8)["choices"][0]["token_ids"]


def wait_until_kept(server, blocks):
    """Waits until KV is stored. Metrics are those of the last step, so a small request makes one."""

    def are_kept():
        server.complete(prompt=[5], max_tokens=1)
        return server.metrics().get(ON_DISK, 0) >= blocks

    wait_for(are_kept)


def files(tmp_path, name):
    return list((tmp_path / "kv").glob(f"*/{name}"))


@pytest.mark.parametrize("killed", [False, True])
def test_what_was_computed_is_there_for_the_next_process(spillway, tmp_path, killed):
    with start(spillway, tmp_path) as server:
        first = ids(server)
        wait_until_kept(server, WHOLE // 16)
        assert server.metrics()[FROM_DISK] == 0
        if killed:
            server.process.kill()
            server.process.wait()
        else:
            assert server.end() == 0
    with start(spillway, tmp_path) as server:
        assert ids(server) == first
        metrics = server.metrics()
        assert metrics[FROM_DISK] == WHOLE
        assert metrics["spillway_reused_tokens_total"] >= WHOLE
        assert metrics["spillway_prompt_tokens_total"] <= len(PROMPT) - WHOLE
        assert metrics[DAMAGED] == 0
        assert metrics['spillway_kv_store_moved_bytes_total{way="disk_read"}'] > 0
    with Server(spillway, MODEL, tmp_path, *SMALL, keeps_kv=False) as server:
        assert ids(server) == first, "without it the answer is the same"


def test_figures_of_the_folder_are_right_before_any_request(spillway, tmp_path):
    with start(spillway, tmp_path) as server:
        ids(server)
        wait_until_kept(server, WHOLE // 16)
        kept = server.metrics()[ON_DISK]
        assert server.end() == 0
    with start(spillway, tmp_path) as server:
        assert server.metrics()[ON_DISK] == kept
        assert "evicted" not in server.log()
        assert server.end() == 0
    each = files(tmp_path, "blocks")[0].stat().st_size // int(kept)
    with start(spillway, tmp_path, "--kv-dir-size", str(3 * (each + 200))) as server:
        assert server.metrics()[ON_DISK] == 3
        assert server.metrics()['spillway_kv_store_evictions_total{tier="disk"}'] == kept - 3
        assert re.search(rf"--kv-dir: {int(kept) - 3} of {int(kept)} blocks of KV in .* are evicted", server.log())


@pytest.mark.parametrize("name", ["lock", "blocks", "index"])
def test_what_is_no_file_is_an_error(spillway, tmp_path, name):
    words = ["run", MODEL, "--ids", "5", "-n", "1", "--device", "cpu", "--kv-dir", tmp_path / "kv"]
    assert spillway.run(*words).code == 0
    (path,) = files(tmp_path, name)
    path.unlink()
    os.mkfifo(path)
    result = spillway.run(*words, timeout=60)
    assert result.code == 2 and "is not a regular file" in result.err


def test_damaged_files_are_noticed_and_their_blocks_computed_again(spillway, tmp_path):
    with start(spillway, tmp_path) as server:
        first = ids(server)
        wait_until_kept(server, WHOLE // 16)
    (blocks,) = files(tmp_path, "blocks")
    data = bytearray(blocks.read_bytes())
    generator = random.Random(7)
    for _ in range(200):
        data[generator.randrange(len(data))] ^= 1 << generator.randrange(8)
    blocks.write_bytes(data)
    with start(spillway, tmp_path) as server:
        assert ids(server) == first
        assert server.metrics()[DAMAGED] > 0


def test_other_settings_find_nothing(spillway, tmp_path):
    with start(spillway, tmp_path) as server:
        ids(server)
        wait_until_kept(server, WHOLE // 16)
    with start(spillway, tmp_path, "--kv-type", "int8") as server:
        ids(server)
        assert server.metrics()[FROM_DISK] == 0
    assert len(files(tmp_path, "index")) == 2


def test_a_second_process_works_without_it(spillway, tmp_path):
    with start(spillway, tmp_path) as first, start(spillway, tmp_path) as second:
        assert ids(first) == ids(second)
        assert "another process uses the KV in" in second.log()
        assert ON_DISK not in second.metrics() or second.metrics()[ON_DISK] == 0


def test_a_folder_that_is_none_is_an_error(spillway, tmp_path):
    file = tmp_path / "file"
    file.write_text("x")
    for path, words in ((file, "is not a folder"), (tmp_path / "no" / "where", "cannot make the folder")):
        result = spillway.run("run", MODEL, "--ids", "5", "-n", "1", "--device", "cpu", "--kv-dir", path)
        assert result.code == 2
        assert words in result.err


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_may_not_be_written_is_an_error(spillway, tmp_path):
    folder = tmp_path / "kv"
    folder.mkdir(mode=0o500)
    result = spillway.run("run", MODEL, "--ids", "5", "-n", "1", "--device", "cpu", "--kv-dir", folder)
    assert result.code == 2


def test_a_batch_job_that_is_not_deterministic_takes_none(spillway, tmp_path):
    requests = tmp_path / "in.jsonl"
    requests.write_text("")
    words = ["batch", MODEL, requests, "-o", tmp_path / "out.jsonl", "--no-deterministic", "--kv-dir", tmp_path / "kv"]
    result = spillway.run(*words)
    assert result.code == 2
    assert "--kv-dir" in result.err and not (tmp_path / "kv").exists()


def test_run_and_serve_share_it(spillway, tmp_path):
    options = ["--device", "cpu", "--deterministic", "--no-tuning", "--threads", "1", "--kv-dir", tmp_path / "kv"]
    first = spillway.greedy(MODEL, PROMPT, 8, *options)
    assert spillway.greedy(MODEL, PROMPT, 8, *options) == first
    with start(spillway, tmp_path) as server:
        assert ids(server) == first
        assert server.metrics()[FROM_DISK] == WHOLE


def test_a_full_disk_is_a_warning(spillway, tmp_path):
    with start(spillway, tmp_path) as server:
        first = ids(server)
    pathlib.Path(files(tmp_path, "index")[0]).unlink()
    environment = dict(os.environ, SPILLWAY_FAULTS="io.write:1+:enospc")
    with Server(spillway, MODEL, tmp_path, *SMALL, "--kv-dir", tmp_path / "kv", env=environment) as server:
        assert ids(server) == first
        assert ids(server, PROMPT[:50]) is not None
        assert server.end() == 0
        assert "No space left on device" in server.log()


def test_a_size_that_is_none_is_an_error_on_every_device(spillway):
    result = spillway.run("serve", MODEL, *SMALL, "--port", "0", "--device", "cpu", "--kv-host-size", "lots")
    assert result.code == 2
    assert "--kv-host-size is 'lots'" in result.err
