#!/bin/sh
# SPDX-License-Identifier: MIT
# Measures payload, wake_ns and byte_ns of the file costs on two emulated hosts, and writes them there. Nothing of the
# file cases is measured: neither its networks at their batch nor its exchanges behind their kernels.
# usage: calibrate.sh [COSTS (tests/scale/costs)] [ROUNDS (3)], from the top of the build tree after "make bench"; needs
#        root and a quiet machine with 2 cores for 1 minute
# shellcheck disable=SC2154  # the costs
set -eu

here=$(cd "$(dirname "$0")" && pwd)
costs=${1:-$here/costs} rounds=${2:-3}
[ -w "$costs" ] && [ -x tests/bench/bench_scale ] && [ -x tests/bench/bench_step ] &&
    [ -x tests/bench/bench_exchange ] || {
    sed -n '/^# usage: /,/^set -eu/s/^# \{0,1\}//p' "$0" | grep -v '^set' >&2
    exit 2
}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 143' INT TERM HUP
# shellcheck source=tests/scale/costs
. "$costs" # what stays as it is

run() { # Mbit/s, program, options...: leaves its line in $work/line
    rate=$1
    shift
    sh "$here/../cluster/with_cluster.sh" -r "${rate}mbit" -t 100 -- mpirun -n 2 "$@" </dev/null >"$work/line" \
        2>"$work/errors" || {
        echo "error: $1: $(cat "$work/errors")" >&2
        exit 1
    }
}
value_of() { # key
    sed -n "s/.*\"$1\": \\([0-9.]*\\).*/\\1/p" "$work/line"
}
median_of() { # name
    sort -g "$work/$1" | awk '{ v[NR] = $1 } END { print (v[int((NR + 1) / 2)] + v[int((NR + 2) / 2)]) / 2 }'
}

echo "rest 0 0 0" >"$work/no_kernels"
for round in $(seq "$rounds"); do
    # An exchange with nothing to do besides takes the time of its bytes.
    run 100 tests/bench/bench_scale --model mlp --device "model:$work/no_kernels" --steps 6 --warmup 10
    awk -v bytes="$(value_of sent_bytes_per_step)" -v ms="$(value_of step_ms)" \
        'BEGIN { print bytes / 2 * 8 / (100e3 * ms) }' >>"$work/payload"
    # A sum of two numbers is two messages, one after the other.
    run 1000 tests/bench/bench_exchange --bytes 8 --repeats 500
    awk -v ms="$(value_of median_ms)" -v link="$latency_us" \
        'BEGIN { print (ms * 1e3 / 2 - link) * 1e3 }' >>"$work/wake_ns"
    # What an exchange that steps hide takes from their kernels; 4.8 MB are sent and received.
    run 1000 tests/bench/bench_step --model cnn --batch 256 --report-hidden --steps 24 --warmup 12
    awk -v hidden="$(value_of exposed_ms)" -v wait="$(value_of lazy_wait_ms)" -v sum="$sum_ns" \
        'BEGIN { print (hidden - wait) * 1e6 / (2 * 4799552) - sum / 4 }' >>"$work/byte_ns"
    echo "round $round: $(tail -qn 1 "$work/payload" "$work/wake_ns" "$work/byte_ns" | tr '\n' ' ')" >&2
done
replace() { # name, value
    sed "s/^$1=[0-9.]*/$1=$2/" "$costs" >"$work/costs"
    cat "$work/costs" >"$costs"
}
replace payload "$(printf %.4f "$(median_of payload)")"
replace wake_ns "$(printf %.0f "$(median_of wake_ns)")"
replace byte_ns "$(printf %.2f "$(median_of byte_ns)")"
grep -E '^(payload|wake_ns|byte_ns)=' "$costs"
