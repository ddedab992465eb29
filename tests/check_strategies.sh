#!/bin/sh
# SPDX-License-Identifier: MIT
# Trains the mlp with every strategy and every wire on two ranks, on generated digits: each must learn them, and
# what is the same mathematics must end with the same bits. Prints the results as TAP.
# usage: check_strategies.sh, in the build tree; uses MPIRUN and MPIRUN_FLAGS
set -u
export LC_ALL=C

root=$(cd "$(dirname "$0")/.." && pwd) || exit 1
. "$root/tests/test_env.sh"
launcher=${MPIRUN:-mpirun}
if [ "$launcher" = no ]; then
    echo "1..0 # SKIP configure found no MPI launcher"
    exit 0
fi
export ISO_DIGITS=19200 # what all processes would generate anew
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
count=0

result() { # 0 for good, what should hold
    count=$((count + 1))
    if [ "$1" = 0 ]; then
        echo "ok - $2"
    else
        echo "not ok - $2"
        sed 's/^/# /' "$work/output"
    fi
}
field() { # name
    tail -n 1 "$work/log" | sed -n "s/.*\"event\":\"summary\".*\"$1\":\"\\{0,1\\}\\([^,\"}]*\\).*/\\1/p"
}
train() { # options: *accuracy* and *hash* are then what came of it
    rm -f "$work/log"
    # shellcheck disable=SC2086  # flags are several words
    timeout -k 5 120 "$launcher" ${MPIRUN_FLAGS---oversubscribe --bind-to none} -n 2 bin/train --model mlp \
        --steps 300 --quiet --overwrite --log "$work/log" "$@" >"$work/output" 2>&1 </dev/null
    accuracy=$(field test_accuracy)
    hash=$(field param_hash)
}
learns() { # options
    train "$@"
    awk -v a="${accuracy:-0}" 'BEGIN { exit !(a >= 0.97) }'
    result $? "learns the digits with $* (${accuracy:-nothing})"
}
same() { # hash, what is the same
    [ -n "$1" ] && [ "$1" = "$hash" ]
    result $? "$2"
}

learns --sync lazy
lazy=$hash
learns --sync blocking
same "$lazy" "blocking gives lazy's bits"
learns --sync explicit
same "$lazy" "explicit gives lazy's bits"
for wire in bf16 f16 bf16-feedback int8 fp8 dithering onebit adasum "topk --topk-ratio 0.05" \
    "powersgd --powersgd-rank 2 --powersgd-start 30" \
    "powersgd+bf16 --powersgd-rank 2 --powersgd-start 30"; do
    # shellcheck disable=SC2086 # several options
    learns --sync lazy --wire $wire
    first=$hash
    # shellcheck disable=SC2086
    train --sync blocking --wire $wire
    same "$first" "blocking gives lazy's bits with --wire $wire"
done
# Whole buckets as one matrix are approximated worse, and what is not drawn comes late.
for wire in "powersgd --powersgd-batched --powersgd-rank 2 --powersgd-start 30" "randomk --randomk-ratio 0.1"; do
    # shellcheck disable=SC2086
    train --sync lazy --wire $wire
    first=$hash
    awk -v a="${accuracy:-0}" 'BEGIN { exit !(a >= 0.9) }'
    result $? "learns the digits with --wire $wire (${accuracy:-nothing})"
    # shellcheck disable=SC2086
    train --sync blocking --wire $wire
    same "$first" "blocking gives lazy's bits with --wire $wire"
done
learns --sync lazy --accumulate 2 --batch 32
learns --sync daso
learns --sync daso-heat
learns --sync localsgd
learns --sync postlocal
learns --sync gossip
learns --sync gossip --peers pair
for wire in bf16 f16 int8 fp8 int4; do
    learns --sync gossip --wire $wire
done
learns --sync gossip --peers pair --wire int8
learns --sync async
learns --sync server
learns --sync server --servers 1
learns --sync tournament --unit rank --period 50 --validation 0.1
# What travels in few bits between two nodes costs less than a point.
ISO_RANKS_PER_NODE=1
export ISO_RANKS_PER_NODE
for mode in "daso --period 4 --wait 2" "localsgd --period 4" "postlocal --period 4"; do
    # shellcheck disable=SC2086
    train --sync $mode --wire f32
    exact=$accuracy
    for wire in int8 int4; do
        # shellcheck disable=SC2086
        train --sync $mode --wire $wire
        awk -v a="${accuracy:-0}" -v f="${exact:-1}" 'BEGIN { exit !(a >= 0.95 && a > f - 0.01) }'
        result $? "$mode learns with $wire (${accuracy:-nothing}) what it learns with f32 (${exact:-nothing})"
    done
done
# Top-k leaves most for later.
for mode in "daso --period 4 --wait 2" "localsgd --period 4 --topk-ratio 0.125" gossip; do
    # shellcheck disable=SC2086
    train --sync $mode --wire topk
    awk -v a="${accuracy:-0}" 'BEGIN { exit !(a >= 0.955) }'
    result $? "$mode learns with topk (${accuracy:-nothing})"
done
echo "1..$count"
