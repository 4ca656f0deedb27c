#!/usr/bin/env bash
# Prints how many compiler processes this machine can take: one per core, but no more than one per 1.5 GB of available memory.
set -euo pipefail

cores=$(nproc)
available_kib=$(awk '/^MemAvailable:/ { print $2 }' /proc/meminfo 2>/dev/null || true)
available_kib=${available_kib:-$((cores * 1500000))}
# In a container the control group's limit may be the smaller one ("max" where there is none).
limit=$(cat /sys/fs/cgroup/memory.max 2>/dev/null || echo max)
used=$(cat /sys/fs/cgroup/memory.current 2>/dev/null || echo 0)
if [[ $limit =~ ^[0-9]+$ && $used =~ ^[0-9]+$ ]]; then
  left_kib=$(((limit - used) / 1024))
  if ((left_kib < available_kib)); then available_kib=$left_kib; fi
fi
jobs=$((available_kib / 1500000))
if ((jobs > cores)); then jobs=$cores; fi
if ((jobs < 1)); then jobs=1; fi
echo "$jobs"
