#!/bin/sh
# SPDX-License-Identifier: MIT
# Shows how much of the exchange disappears behind computing: two emulated hosts, 1 Gbit/s, one rank each.
# usage: overlap.sh [STEPS (40)], from the top of the build tree after "make bench"; needs root
# The wire needs 34 ms for 4 MB: the bytes of 2 (N - 1) / N of it, with the headers of Ethernet, IP and TCP.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
steps=${1:-40}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
bench=tests/bench

[ -x $bench/bench_step ] && [ -x $bench/bench_exchange ] || {
    echo "error: $bench/bench_step is missing here: run \"make bench\" in the build tree first" >&2
    exit 1
}
cluster() { # command...
    sh "$here/../cluster/with_cluster.sh" -n 2 -r 1gbit -t 300 -- mpirun -n 2 "$@" 2>"$work/errors" || {
        status=$?
        cat "$work/errors" >&2
        exit "$status"
    }
}
field() { # name, file
    sed -n "s/.*\"$1\": \"\\{0,1\\}\\([^,\"}]*\\).*/\\1/p" "$2"
}
step_row() { # batch, progress
    cluster $bench/bench_step --model cnn --batch "$1" --steps "$steps" --progress "$2" --report-hidden >"$work/row"
    printf '%5s  %-8s %9s %9s %9s %9s %9s %9s %8s\n' "$1" "$2" "$(field none_ms "$work/row")" \
        "$(field exchange_alone_ms "$work/row")" "$(field lazy_ms "$work/row")" "$(field blocking_ms "$work/row")" \
        "$(field exposed_ms "$work/row")" "$(field lazy_wait_ms "$work/row")" "$(field hidden "$work/row")"
}

cluster $bench/bench_exchange --rate 1 --repeats 50 >"$work/row"
echo "exchange of 4 MB alone: median $(field median_ms "$work/row") ms, p95 $(field p95_ms "$work/row") ms"
echo "CNN, times in ms (exposed = lazy - compute; waiting: of that, in waits; hidden = 1 - exposed / exchange):"
printf '%5s  %-8s %9s %9s %9s %9s %9s %9s %8s\n' batch progress compute exchange lazy blocking exposed \
    waiting hidden
step_row 256 thread
step_row 256 off
step_row 64 thread
