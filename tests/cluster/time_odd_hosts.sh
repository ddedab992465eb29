#!/bin/sh
# SPDX-License-Identifier: MIT
# Times steps of the mlp on emulated hosts whose number is no power of two: gradients by pairwise exchange,
# and by MPI's all-reduce with Rabenseifner's algorithm, in turn. The hosts share the cores of one machine, so ranks sleep
# for the times of the kernels, which are measured first. Prints a line of JSON for each run.
# usage: time_odd_hosts.sh [RATE (1gbit) [REPEATS (5) [HOSTS ("3 5 6") [STEPS (48)]]]], as root, from the top of the
#        build tree after "make bench"; a third of STEPS come before those that are timed
set -eu

root=$(cd "$(dirname "$0")/../.." && pwd)
. "$root/tests/test_env.sh"

run() { # table, hosts, sync, algorithm, steps
    ISO_IALLREDUCE=$4 mpirun -n "$2" tests/bench/bench_scale --model mlp --batch 64 --device "model:$1" --sync "$3" \
        --steps "$5" --warmup $(($5 / 3)) | sed -n "s/^{/{\"hosts\": $2, \"algorithm\": $4, /p"
}

if [ "${1:-}" = --head ]; then # table, hosts, steps
    for sync in lazy blocking; do
        for algorithm in 5 3; do run "$2" "$3" $sync $algorithm "$4"; done
    done
    exit
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mpirun -n 2 tests/bench/bench_step --model mlp --batch 64 --sync none --breakdown --table "$work/table" --steps 200 \
    --warmup 8 >"$work/output"
for _ in $(seq "${2:-5}"); do
    for hosts in ${3:-3 5 6}; do
        sh "$root/tests/cluster/with_cluster.sh" -n "$hosts" -r "${1:-1gbit}" -t 300 -- \
            sh "$0" --head "$work/table" "$hosts" "${4:-48}"
    done
done
