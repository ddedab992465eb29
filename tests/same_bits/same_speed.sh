#!/bin/bash
# SPDX-License-Identifier: MIT
# Compares how fast two builds train: runs both in turn, and prints the ratio of their step times, new to old, with a
# 95 % interval. Every sample is kept.
# usage: same_speed.sh OLD NEW SAMPLES [BLOCKS]; OLD and NEW are build trees, SAMPLES a new file, BLOCKS the number of
#        pairs (40). Exit status 1: somewhere the median ratio or the whole interval is above 1.01.
#        As root it measures two emulated hosts, too.
set -u
export LC_ALL=C

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
. "$root/tests/test_env.sh"
flags=${MPIRUN_FLAGS---oversubscribe --bind-to none}

fail() { # message
    echo "same_speed: $1" >&2
    exit 2
}

# Builds of before had their programs in examples/.
train_of() { # build
    if [ -x "$1/bin/train" ]; then echo "$1/bin/train"; else echo "$1/examples/train"; fi
}

# Median time of a step of the slowest rank, in ms.
step_ms() { # build, where, ranks, model
    local log=$work/log command
    rm -f "$log"
    # shellcheck disable=SC2206  # flags are several words
    command=("${MPIRUN:-mpirun}" $flags -n "$3" "$(train_of "$1")" --model "$4" --steps "$(steps_of "$4")" --quiet
        --log "$log")
    if [ "$2" = hosts ]; then
        command=("$root/tests/cluster/with_cluster.sh" -n "$3" -r 1gbit -t 120 -- "${command[@]}")
    fi
    timeout -k 5 150 "${command[@]}" </dev/null >"$work/output" 2>&1 || return 1
    sed -n 's/.*"step_ms_p50":\([0-9.]*\).*/\1/p' "$log"
}

steps_of() { # model
    case $1 in mlp) echo 400 ;; *) echo 60 ;; esac
}

# Old and new in turn, the first of a pair alternating: a line WHERE RANKS MODEL BLOCK OLD NEW in SAMPLES.
measure() { # where, ranks, model
    local block a b
    for block in $(seq 1 "$blocks"); do
        if [ $((block % 2)) = 0 ]; then
            a=$(step_ms "$old" "$@") && b=$(step_ms "$new" "$@")
        else
            b=$(step_ms "$new" "$@") && a=$(step_ms "$old" "$@")
        fi || { cat "$work/output" && fail "a run failed: $*"; }
        echo "$* $block $a $b" >>"$samples"
    done
    judge "$@"
}

# The interval is that of the median's order statistics, which assumes no distribution.
judge() { # where, ranks, model
    grep "^$* " "$samples" | awk '{ print $6 / $5, $5, $6 }' | sort -n | awk -v what="$*" '
        { ratio[NR] = $1 }
        END {
            low = int(NR / 2 - 0.98 * sqrt(NR)); high = NR + 1 - low
            if (low < 1) { low = 1; high = NR }
            middle = (ratio[int((NR + 1) / 2)] + ratio[int(NR / 2) + 1]) / 2
            slower = middle > 1.01 || ratio[low] > 1.01
            printf "%-16s ratio %.4f, 95 %% from %.4f to %.4f, %d pairs%s\n", what, middle, ratio[low],
                ratio[high], NR, slower ? "  SLOWER" : ""
        }' | tee -a "$work/verdicts"
}

[ $# -ge 3 ] || fail "usage: same_speed.sh OLD NEW SAMPLES [BLOCKS]"
old=$(cd "$1" && pwd) || fail "OLD is a build tree"
new=$(cd "$2" && pwd) || fail "NEW is a build tree"
samples=$3
blocks=${4:-40}
[ ! -e "$samples" ] || fail "$samples exists: samples of another comparison are not added to"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for model in mlp cnn; do
    measure alone 1 $model
    measure alone 2 $model
    if [ "$(id -u)" = 0 ]; then measure hosts 2 $model; fi
done
! grep -q SLOWER "$work/verdicts"
