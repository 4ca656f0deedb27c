#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures how long a GGUF file takes to load, beside reading the same file raw, and how much memory running it takes.

    bench/load_and_memory.py MODEL.gguf [--spillway build/release/bin/spillway] [--threads N] [-o bench/results/NAME.json]

Raw reading is done with O_DIRECT (the disk), with read() of a file that the page cache has dropped, and of one that it
holds. Spillway loads the file mapped and with --no-mmap, each with and without the page cache. Memory is the peak of the
resident set of a whole run (prompt and decode), less the file's size and the KV cache; the bar is --bar-mb of that.
"""

import argparse
import concurrent.futures
import datetime
import json
import mmap
import os
import platform
import statistics
import subprocess
import sys
import time

import keep_result

CHUNK = 8 << 20
KV_BLOCK_TOKENS = 16


def drop_from_cache(path):
    """Drops the file from the page cache; an ordinary user may do that for pages that are not dirty."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)


def read_seconds(path, flags, readers):
    """Seconds to read the whole file in reads of 8 MiB, `readers` of them concurrent; None if the file system refuses."""
    size = os.path.getsize(path)
    try:
        fd = os.open(path, os.O_RDONLY | flags)
    except OSError:
        return None

    def read_share(reader):
        buffer = mmap.mmap(-1, CHUNK)  # aligned as O_DIRECT requires
        with buffer, memoryview(buffer) as view:
            for offset in range(reader * CHUNK, size, readers * CHUNK):
                done = 0
                while offset + done < min(size, offset + CHUNK):
                    count = os.preadv(fd, [view[done:]], offset + done)
                    if count == 0:
                        break
                    done += count

    try:
        started = time.monotonic()
        with concurrent.futures.ThreadPoolExecutor(readers) as pool:
            list(pool.map(read_share, range(readers)))
        return time.monotonic() - started
    except OSError:
        return None
    finally:
        os.close(fd)


def raw_reads(path, repeat):
    """The best GB/s of `repeat` reads of each kind."""
    size = os.path.getsize(path)
    rates = {}
    kinds = [("direct, 1 reader", os.O_DIRECT, 1, True), ("direct, 4 readers", os.O_DIRECT, 4, True),
             ("read(), not cached", 0, 1, True), ("read(), cached", 0, 1, False)]  # fmt: skip
    for name, flags, readers, cold in kinds:
        seconds = []
        for _ in range(repeat):
            if cold:
                drop_from_cache(path)
            seconds.append(read_seconds(path, flags, readers))
        if None not in seconds:
            rates[name] = size / min(seconds) / 1e9
    return rates


def run_once(args, direct):
    """(load seconds, peak resident bytes) of one run of `spillway bench`."""
    command = [args.spillway, "bench", args.model, "--prompt-len", str(args.prompt), "--gen-len", str(args.gen), "--repeat",
               "1", "--threads", str(args.threads), "--json"] + (["--no-mmap"] if direct else [])  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    answer = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        sys.exit(f"{' '.join(command)} failed with {process.returncode}")
    return json.loads(answer)["load_s"], usage.ru_maxrss * 1024


def measure_loads(args, size, kv_bytes, disk_rate):
    rows = []
    for direct in (False, True):
        for cold in (True, False):
            loads, peaks = [], []
            for _ in range(args.repeat):
                if cold:
                    drop_from_cache(args.model)
                else:
                    read_seconds(args.model, 0, 1)
                load_s, peak = run_once(args, direct)
                loads.append(load_s)
                peaks.append(peak)
            load_s = statistics.median(loads)
            rows.append({
                "access": "direct" if direct else "mapped", "page_cache": "empty" if cold else "full",
                "load_s": load_s, "load_gb_per_s": size / load_s / 1e9,
                "share_of_disk": size / load_s / 1e9 / disk_rate if cold or direct else None,
                "peak_resident_bytes": max(peaks), "beyond_file_and_kv_bytes": max(peaks) - size - kv_bytes,
            })  # fmt: skip
    return rows


def print_report(result):
    print(f"{result['model']}: {result['file_bytes'] / 1e6:.1f} MB, KV {result['kv_bytes'] / 1e6:.1f} MB")
    for name, rate in result["raw_read_gb_per_s"].items():
        print(f"  raw {name:<22} {rate:6.2f} GB/s")
    print(f"  {'load':<26} {'s':>6} {'GB/s':>6} {'of disk':>8} {'peak MB':>9} {'beyond file + KV, MB':>22}")
    for row in result["loads"]:
        share = f"{row['share_of_disk']:.0%}" if row["share_of_disk"] else "-"
        name = f"{row['access']}, page cache {row['page_cache']}"
        print(f"  {name:<26} {row['load_s']:6.2f} {row['load_gb_per_s']:6.2f} {share:>8} "
              f"{row['peak_resident_bytes'] / 1e6:9.1f} {row['beyond_file_and_kv_bytes'] / 1e6:22.1f}")  # fmt: skip
    print(f"  memory within the bar of {result['bar_bytes'] / 1e6:.0f} MB: {'yes' if result['within_bar'] else 'no'}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="GGUF file, or a name that spillway knows")
    parser.add_argument("--spillway", default="build/release/bin/spillway")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--gen", type=int, default=64)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--bar-mb", type=float, default=100)
    parser.add_argument("-o", "--output")
    args = parser.parse_args()

    inspected = subprocess.run([args.spillway, "inspect", args.model, "--json"], check=True, stdout=subprocess.PIPE)
    found = json.loads(inspected.stdout)
    args.model = found["files"][0]
    size = os.path.getsize(args.model)
    blocks = -(-(args.prompt + args.gen) // KV_BLOCK_TOKENS)
    kv_bytes = blocks * KV_BLOCK_TOKENS * found["model"]["kv_bytes_per_token"]
    raw = raw_reads(args.model, args.repeat)
    disk_rate = max(rate for name, rate in raw.items() if "cached" not in name or "not" in name)
    loads = measure_loads(args, size, kv_bytes, disk_rate)
    result = {
        "date": datetime.date.today().isoformat(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "command": " ".join(os.path.basename(word) if os.sep in word else word for word in sys.argv),
        "model": os.path.basename(args.model),
        "file_bytes": size, "kv_bytes": kv_bytes, "raw_read_gb_per_s": raw, "loads": loads,
        "bar_bytes": args.bar_mb * 1e6,
        "within_bar": all(row["beyond_file_and_kv_bytes"] <= args.bar_mb * 1e6 for row in loads),
    }  # fmt: skip
    print_report(result)
    keep_result.keep(result, args.output)


if __name__ == "__main__":
    main()
