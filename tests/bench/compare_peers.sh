#!/bin/sh
# SPDX-License-Identifier: MIT
# Compares the step time of bench_step with PyTorch's, taking turns, on one rank and one thread.
# usage: compare_peers.sh [PAIRS (5)], from the top of the build tree after "make bench"; PYTHON names a
#        Python that has torch (/usr/bin/python3, Debian: apt-get install python3-torch)
# PEER_ENV: see compare_common.sh.
set -eu

# shellcheck source-path=SCRIPTDIR source=compare_common.sh
. "$(dirname "$0")/compare_common.sh"
pairs=${1:-5}

compare() { # model, batch, timed steps, others before them
    : >"$work/ours"
    : >"$work/theirs"
    i=0
    while [ "$i" -lt "$pairs" ]; do
        tests/bench/bench_step --model "$1" --batch "$2" --steps "$3" --warmup "$4" >>"$work/ours"
        # shellcheck disable=SC2086
        env ${PEER_ENV:-} "$python" "$here/peers/step_pytorch.py" --model "$1" --batch "$2" --steps "$3" \
            --warmup "$4" >>"$work/theirs"
        i=$((i + 1))
    done
    ours=$(p50 "$work/ours")
    theirs=$(p50 "$work/theirs")
    echo "$1, batch $2: Isotherm $ours ms, $(peer_of "$work/theirs") $theirs ms," \
        "ratio $(ratio "$ours" "$theirs"); $pairs turns each, median of medians"
}

compare cnn 64 30 10
compare mlp 64 30 10
compare resnet18 64 5 2
