#!/bin/sh
# SPDX-License-Identifier: MIT
# Compares the lazy step of bench_step with PyTorch's DistributedDataParallel over gloo, taking turns: two emulated
# hosts with one rank each, one thread a rank, 1 Gbit/s. Also tells what of the exchange is hidden, and how much longer
# a step is than the larger of computing alone and the exchange alone.
# usage: compare_hosts.sh [TURNS (3) [STEPS (40)]], from the top of the build tree after "make bench"; needs root;
#        PYTHON and PEER_ENV: see compare_common.sh
set -eu

# shellcheck source-path=SCRIPTDIR source=compare_common.sh
. "$(dirname "$0")/compare_common.sh"
turns=${1:-3}
steps=${2:-40}

cluster() { # command...
    sh "$here/../cluster/with_cluster.sh" -n 2 -r 1gbit -t 300 -- mpirun -n 2 "$@" 2>>"$work/errors" || {
        status=$?
        cat "$work/errors" >&2
        exit "$status"
    }
}
turn() { # options of both programs
    cluster tests/bench/bench_step "$@" --sync lazy >>"$work/ours"
    # shellcheck disable=SC2086
    cluster env ${PEER_ENV:-} "$python" "$here/peers/step_pytorch.py" "$@" --master 10.77.0.1 --interface eth0 \
        >>"$work/ddp"
    cluster tests/bench/bench_step "$@" --report-hidden >>"$work/hidden"
}
middle() { # name: the median of a field of the hidden runs
    field "$1" "$work/hidden" | median
}
compare() { # model, batch
    rm -f "$work"/*
    i=0
    while [ "$i" -lt "$turns" ]; do
        turn --model "$1" --batch "$2" --steps "$steps" --warmup 12
        i=$((i + 1))
    done
    ours=$(p50 "$work/ours")
    theirs=$(p50 "$work/ddp")
    bound=$(printf '%s\n%s\n' "$(middle none_ms)" "$(middle exchange_alone_ms)" | sort -g | tail -n 1)
    echo "$1, 2 hosts, batch $2 each: Isotherm lazy $ours ms, $(peer_of "$work/ddp") $theirs ms, ratio" \
        "$(ratio "$ours" "$theirs"); computing alone $(middle none_ms) ms, exchange alone $(middle exchange_alone_ms) ms:" \
        "$(ratio "$ours" "$bound") of the larger; exposed $(middle exposed_ms) ms, of that waiting" \
        "$(middle lazy_wait_ms) ms: $(middle hidden) hidden; $turns turns, medians"
}

compare cnn 64
compare cnn 256
