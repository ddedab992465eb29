#!/bin/sh
# SPDX-License-Identifier: MIT
# Times a step of the mlp and the cnn for each communication hook: two emulated hosts, one rank each, links of 100 Mbit/s
# and 1 Gbit/s. Prints a table of medians in ms, and of ratios to f32.
# usage: wires.sh [STEPS (20) [BATCH (64)]], from the top of the build tree after "make bench"; needs root
#
# Five blocks, fixed beforehand, measure all hooks, each block from another hook on, so that what else the machine does
# meets all of them. A block yields the median of its steps on the slowest rank, and the table the median of the blocks.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
steps=${1:-20}
batch=${2:-64}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

[ -x tests/bench/bench_step ] || {
    echo "error: tests/bench/bench_step is missing here: run \"make bench\" in the build tree first" >&2
    exit 1
}
block() { # rate, wires
    sh "$here/../cluster/with_cluster.sh" -n 2 -r "$1" -t 900 -- mpirun -n 2 tests/bench/bench_step --model mlp,cnn \
        --wire "$2" --batch "$batch" --steps "$steps" --warmup 3 2>"$work/errors" || {
        status=$?
        cat "$work/errors" >&2
        exit "$status"
    }
}
step_times() { # file: "model wire ms" of each line
    sed -n 's/.*"model": "\([^"]*\)", "wire": "\([^"]*\)".*"step_ms_p50": \([0-9.]*\).*/\1 \2 \3/p' "$1"
}

printf '%-9s %-5s %9s %9s %9s %9s %9s\n' rate model f32 bf16 int8 topk powersgd
for rate in 100mbit 1gbit; do
    : >"$work/rows"
    for wires in f32,bf16,int8,topk,powersgd bf16,int8,topk,powersgd,f32 int8,topk,powersgd,f32,bf16 \
        topk,powersgd,f32,bf16,int8 powersgd,f32,bf16,int8,topk; do
        block $rate $wires >>"$work/rows"
    done
    step_times "$work/rows" | sort -k1,1 -k2,2 -k3,3g | awk -v rate=$rate '
        { ms[$1, $2, ++seen[$1, $2]] = $3 }
        END {
            count = split("f32 bf16 int8 topk powersgd", wire)
            split("mlp cnn", model)
            for (m = 1; m <= 2; m++) {
                row = sprintf("%-9s %-5s", rate, model[m])
                for (w = 1; w <= count; w++) row = row sprintf(" %9.1f", ms[model[m], wire[w], 3])
                print row
                row = sprintf("%-9s %-5s", "", "/ f32")
                for (w = 1; w <= count; w++)
                    row = row sprintf(" %9.2f", ms[model[m], wire[w], 3] / ms[model[m], wire[1], 3])
                print row
            }
        }'
done
