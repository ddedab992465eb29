#!/bin/sh
# SPDX-License-Identifier: MIT
# Writes what simulations take: the times of the kernels of mlp, cnn, resnet18 and wide to FOLDER/MODEL-BATCH.times (all
# ranks compute at once, as in the runs that are predicted, and exchange nothing), and to FOLDER/work the ns a parameter
# that an exchange of parameters costs a rank.
# usage: tables.sh FOLDER [RANKS (2)], from the top of the build tree after "make bench"; on a quiet machine, 1 minute
set -eu

[ $# -ge 1 ] || {
    sed -n 's/^# usage: /usage: /p' "$0" >&2
    exit 2
}
for program in bench_step bench_scale; do
    [ -x "tests/bench/$program" ] || {
        echo "tables.sh: there is no tests/bench/$program here: run \"make bench\" in the build tree, and this there" >&2
        exit 1
    }
done
mkdir -p "$1"
ranks=${2:-2}
time_kernels() { # model, batch, steps
    mpirun -n "$ranks" tests/bench/bench_step --model "$1" --batch "$2" --sync none --breakdown \
        --table "$out/$1-$2.times" --steps "$3" --warmup 8 >"$out/$1-$2.txt"
    tail -n 1 "$out/$1-$2.txt"
}
out=$1
time_kernels mlp 64 400
time_kernels cnn 64 60
time_kernels resnet18 32 16
time_kernels cnn 128 30
time_kernels resnet18 16 24
# wide: its products take time in proportion; its updates are those of arrays that no cache holds.
{
    grep -v -e '^sgd' -e '^rest' "$out/mlp-64.times"
    grep '^sgd' "$out/resnet18-32.times"
} >"$out/wide-64.times"
time_work() { # sync, settings, period
    ISO_RANKS_PER_NODE=1 mpirun -n "$ranks" tests/bench/bench_scale --model mlp --sync "$1" --set "$2" --steps 320 |
        sed -n 's/.*"parameters": \([0-9]*\).*"work_ms_per_step": \([0-9.]*\).*/\1 \2/p' |
        awk -v sync="$1" -v period="$3" '{ printf "%s %.3f\n", sync, $2 * 1e6 * period / $1 }'
}
{
    time_work daso period=8,wait=4,warmup-steps=0,cooldown-steps=0 8
    time_work localsgd period=8 8
    time_work diloco period=16 16
    time_work gossip period=1 1
} >"$out/work"
cat "$out/work"
