# SPDX-License-Identifier: MIT
# Sourced by scripts that build: says how many jobs at a time this process may run.
# shellcheck shell=sh

# nproc alone would take OMP_NUM_THREADS, which is of the programs that are built, for an answer, and does not know
# the share of time that a container is given.
cores() {
    cores_count=$(env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT nproc) || cores_count=1
    cores_quota=max cores_period=100000
    if [ -r "${CORES_CGROUP:-/sys/fs/cgroup}/cpu.max" ]; then
        read -r cores_quota cores_period <"${CORES_CGROUP:-/sys/fs/cgroup}/cpu.max" || true
    elif [ -r "${CORES_CGROUP:-/sys/fs/cgroup}/cpu/cpu.cfs_quota_us" ]; then # version 1
        read -r cores_quota <"${CORES_CGROUP:-/sys/fs/cgroup}/cpu/cpu.cfs_quota_us"
        read -r cores_period <"${CORES_CGROUP:-/sys/fs/cgroup}/cpu/cpu.cfs_period_us"
    fi
    if [ "$cores_quota" != max ] && [ "$cores_quota" -gt 0 ]; then
        cores_limit=$(((cores_quota + cores_period - 1) / cores_period))
        [ "$cores_limit" -ge "$cores_count" ] || cores_count=$cores_limit
    fi
    echo "$cores_count"
}
