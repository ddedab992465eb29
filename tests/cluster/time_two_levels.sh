#!/bin/sh
# SPDX-License-Identifier: MIT
# Times blocking steps of several ranks on each of two emulated hosts: sums in two levels, and by messages between all
# ranks, in turn, with ranks placed host by host and in turn. Prints a line of JSON for each run, with both in it.
# usage: time_two_levels.sh [RATE (200mbit) [REPEATS (5)]], as root, from the top of the build tree after "make bench"
set -eu

root=$(cd "$(dirname "$0")/../.." && pwd)
. "$root/tests/test_env.sh"

run() { # ranks, placement, how
    case $2 in
    blocks) map="ppr:$(($1 / 2)):node" ;;
    turns) map=node ;;
    esac
    ISO_NODE_COLLECTIVE=$3 mpirun --map-by "$map" -n "$1" tests/bench/bench_step --model mlp --batch 8 --sync blocking \
        --steps 20 --warmup 6 | sed -n "s/^{\"bench\"/{\"placement\": \"$2\", \"collective\": \"$3\", \"bench\"/p"
}

if [ "${1:-}" = --head ]; then # repeats
    for _ in $(seq "$2"); do
        for ranks in 4 6; do
            for placement in blocks turns; do
                for how in auto mpi; do run "$ranks" "$placement" "$how"; done
            done
        done
    done
    exit
fi
sh "$root/tests/cluster/with_cluster.sh" -n 2 -r "${1:-200mbit}" -t 900 -- sh "$0" --head "${2:-5}"
