#!/bin/sh
# SPDX-License-Identifier: MIT
# Simulates the runs of docs/scale.md, and appends a line of JSON for each to FILE. Runs that FILE has are left out, so
# that it can be interrupted and go on.
# usage: runs_scale.sh BUILD TABLES FILE [MODEL (mlp) [MOST RANKS (1024)]]: the folders of build_scale.sh and tables.sh.
#        MODEL: mlp, or wide with up to 128 ranks. One process on one core at a time; hours for 1024 ranks
set -eu

here=$(cd "$(dirname "$0")" && pwd)
[ $# -ge 3 ] || {
    sed -n 's/^# usage: /usage: /p' "$0" >&2
    exit 2
}
build=$1 tables=$2 file=$3 model=${4:-mlp} most=${5:-1024}
touch "$file"

run() { # sync, settings, ranks, ranks per host, Mbit/s, steps, warm-up
    name="$model $1 $2 $3 $4 $5"
    ! grep -qF "\"run\": \"$name\"" "$file" || return 0
    settings=$2
    set -- "$1" "$3" "$4" "$5" "$6" "$7"
    sync=$1 hosts=$(($2 / $3)) host_ranks=$3 rate=$4 steps=$5 warmup=$6
    set -- --model "$model" --device "model:$tables/$model-64.times" --sync "$sync" --steps "$steps" \
        --warmup "$warmup" --equal
    work=$(sed -n "s/^$sync //p" "$tables/work")
    [ -z "$work" ] || set -- "$@" --work-ns "$work"
    [ "$settings" = - ] || set -- "$@" --set "$settings"
    # Shared memory holds no values, which daso refuses to send as bf16.
    shared=0
    [ "$sync" = daso ] || shared=300000
    if ! out=$(sh "$here/simulate.sh" -b "$build" -n "$hosts" -p "$host_ranks" -r "$rate" -m "$shared" -- "$@" </dev/null); then
        echo "runs_scale.sh: the simulation of \"$name\" failed" >&2
        exit 1
    fi
    echo "$out" | sed "s/^{/{\"run\": \"$name\", \"hosts\": $hosts, \"mbit\": $rate, /" >>"$file"
}

for ranks in 8 16 32 64 128 256 512 1024; do
    [ "$ranks" -le "$most" ] || continue
    for mbit in 1000 10000 100000; do
        for each in 1 4 8; do
            run blocking - $ranks $each $mbit 4 8
            run lazy - $ranks $each $mbit 4 8
            run daso warmup-steps=4,cooldown-steps=0 $ranks $each $mbit 32 16
            run localsgd period=8 $ranks $each $mbit 16 8
            run diloco period=16 $ranks $each $mbit 16 16
        done
    done
done
