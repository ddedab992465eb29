#!/bin/sh
# SPDX-License-Identifier: MIT
# Predicts the cases of the file cases: simulates each, and prints its name and the time of a step in ms.
# usage: predict_scale.sh BUILD TABLES [NAME...]: the folders of build_scale.sh and tables.sh; NAME: these cases alone
#        SCALE_CASES: another file of cases; SCALE_COSTS: another file of costs
set -eu

here=$(cd "$(dirname "$0")" && pwd)
[ $# -ge 2 ] || {
    sed -n 's/^# usage: /usage: /p' "$0" >&2
    exit 2
}
build=$1 tables=$2
shift 2
only=" $* "
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 143' INT TERM HUP
cp "${SCALE_COSTS:-$here/costs}" "$work/real"
# Ranks that sleep lose nothing: the network's work has a core when they do.
{
    cat "$work/real"
    echo "byte_ns=0 sum_ns=0"
} >"$work/slept"
grep -v '^#' "${SCALE_CASES:-$here/cases}" >"$work/cases"
while read -r name hosts mbit model batch kernels slow steps warmup sync settings; do
    [ "$only" = "  " ] || case $only in *" $name "*) ;; *) continue ;; esac
    set -- --model "$model" --batch "$batch" --sync "$sync" --slow-ms "$slow" --steps "$steps" --warmup "$warmup" \
        --device "model:$tables/$model-$batch.times"
    work_ns=$(sed -n "s/^$sync //p" "$tables/work")
    [ -z "$work_ns" ] || set -- "$@" --work-ns "$work_ns"
    [ "$sync" != daso ] || settings=$settings,warmup-steps=0,cooldown-steps=0
    [ "$settings" = - ] || set -- "$@" --set "$settings"
    export SCALE_COSTS="$work/$kernels"
    if ! out=$(sh "$here/simulate.sh" -b "$build" -n "$hosts" -r "$mbit" -- "$@" </dev/null); then
        echo "predict_scale.sh: the simulation of $name failed" >&2
        exit 1
    fi
    echo "$out" | sed -n "s/.*\"step_ms\": \\([0-9.]*\\).*/$name \\1/p"
done <"$work/cases"
