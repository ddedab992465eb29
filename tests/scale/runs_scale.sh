#!/bin/sh
# SPDX-License-Identifier: MIT
# Simulates runs for docs/scale.md, and appends a line of JSON for each to FILE. Runs that FILE has are left out, so that
# it can be interrupted and go on.
# usage: runs_scale.sh BUILD TABLES FILE MODEL RANKS [PER HOST (1) [MBIT/S (1000 10000 100000) [SYNC (all six)]]]
#        BUILD, TABLES: the folders of build_scale.sh and tables.sh. MODEL: mlp, cnn, resnet18 or wide. The others are
#        lists, such as "8 16". One process on one core at a time. docs/scale.md has the time of a run
set -eu

here=$(cd "$(dirname "$0")" && pwd)
[ $# -ge 5 ] && [ $# -le 8 ] || {
    sed -n '/^# usage: /,/^set -eu/s/^# \{0,1\}//p' "$0" | grep -v '^set' >&2
    exit 2
}
build=$1 tables=$2 file=$3 model=$4
ranks_list=$5 each_list=${6:-1} rates=${7:-1000 10000 100000}
syncs=${8:-blocking lazy localsgd diloco daso gossip}
batch=64 daso_steps=32
[ "$model" != mlp ] || daso_steps=96 # the first periods, which it chooses, are longer than 16 steps
[ "$model" != resnet18 ] || batch=32
refuse() { # why
    echo "runs_scale.sh: $1" >&2
    exit 1
}
for list in "$ranks_list" "$each_list" "$rates" "$syncs"; do
    [ -n "$list" ] || refuse "a list is empty"
done
for number in $ranks_list $each_list $rates; do
    case $number in
    *[!0-9]* | 0* | ????????*) refuse "$number is no number from 1 to 9999999" ;;
    esac
done
for ranks in $ranks_list; do
    for each in $each_list; do
        [ $((ranks % each)) = 0 ] || refuse "$ranks ranks do not fill hosts of $each: give a multiple"
    done
done
[ -x "$build/bench_scale_simulated" ] || refuse "$build has no bench_scale_simulated: make it with build_scale.sh"
case $tables in *' '*) refuse "the folder of the tables has a space in its name: SimGrid cannot pass it on" ;; esac
[ -f "$tables/$model-$batch.times" ] || refuse "there is no table $tables/$model-$batch.times: make it with tables.sh"
[ -f "$tables/work" ] || refuse "there is no $tables/work: make it with tables.sh"
touch "$file"
exec 9>>"$file"
flock -n 9 || refuse "another run of it writes to $file: wait for its end, or give another file"
{ [ -z "$(tail -c 1 "$file")" ] && ! grep -vn '^{"run": ".*}$' "$file" >&2; } ||
    refuse "$file has a line that is no whole run: remove it"
failed=0
work=$(mktemp -d)
child=
trap 'rm -rf "$work"' EXIT
trap '[ -z "$child" ] || kill "$child"; exit 143' INT TERM HUP # a shell waits for what is not in the background

run() { # sync, settings, ranks, ranks per host, Mbit/s, steps, warm-up
    name="$model $1 $2 $3 $4 $5"
    ! grep -qF "\"run\": \"$name\"" "$file" || return 0
    settings=$2
    set -- "$1" "$3" "$4" "$5" "$6" "$7"
    sync=$1 hosts=$(($2 / $3)) host_ranks=$3 rate=$4 steps=$5 warmup=$6
    set -- --model "$model" --batch "$batch" --device "model:$tables/$model-$batch.times" --sync "$sync" \
        --steps "$steps" --warmup "$warmup" --equal
    work_ns=$(sed -n "s/^$sync //p" "$tables/work")
    [ -z "$work_ns" ] || set -- "$@" --work-ns "$work_ns"
    [ "$settings" = - ] || set -- "$@" --set "$settings"
    # Faster adapters than those of the measurements are taken to move bytes without a core.
    cp "$here/costs" "$work/costs"
    [ "$rate" -le 1000 ] || echo "byte_ns=0" >>"$work/costs"
    export SCALE_COSTS="$work/costs"
    sh "$here/simulate.sh" -b "$build" -n "$hosts" -p "$host_ranks" -r "$rate" -m 1000000 -- "$@" </dev/null >"$work/out" &
    child=$!
    if ! wait "$child"; then
        echo "runs_scale.sh: the simulation of \"$name\" failed" >&2
        failed=1
        return 0
    fi
    sed "s/^{/{\"run\": \"$name\", \"hosts\": $hosts, \"mbit\": $rate, /" "$work/out" >>"$file"
}

run_sync() { # sync, ranks, ranks per host, Mbit/s
    case $1 in
    blocking | gossip) run "$1" - "$2" "$3" "$4" 4 8 ;;
    lazy) run "$1" - "$2" "$3" "$4" 12 8 ;; # of 4 a part would pass before the first, unmeasured
    localsgd) run "$1" period=8 "$2" "$3" "$4" 16 8 ;;
    diloco) run "$1" period=16 "$2" "$3" "$4" 16 16 ;;
    daso)
        long=$daso_steps
        [ "$model" != wide ] || [ "$4" -gt 1000 ] || long=96 # its periods, too, are longer than 16 steps there
        run "$1" warmup-steps=4,cooldown-steps=0 "$2" "$3" "$4" "$long" "$long"
        ;;
    *)
        echo "runs_scale.sh: no runs of --sync $1" >&2
        failed=1
        ;;
    esac
}

for ranks in $ranks_list; do
    for mbit in $rates; do
        for each in $each_list; do
            for sync in $syncs; do
                run_sync "$sync" "$ranks" "$each" "$mbit"
            done
        done
    done
done
exit $failed
