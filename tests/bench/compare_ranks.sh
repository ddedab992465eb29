#!/bin/sh
# SPDX-License-Identifier: MIT
# Compares the lazy step of bench_step on two ranks of this machine, one thread each, with PyTorch's
# DistributedDataParallel over gloo, with HeAT's DataParallel, and with bench_step on one rank, taking turns.
# usage: compare_ranks.sh [TURNS (5) [STEPS (30)]], from the top of the build tree after "make bench"; PYTHON names
#        a Python that has torch (/usr/bin/python3, Debian: apt-get install python3-torch) and, unless HeAT is to be
#        left out, heat (tests/bench/peers/step_heat.py tells how to set it up)
# A rank's batch is the same on one rank and on two. The machine should have nothing else to do.
# PEER_ENV: see compare_common.sh.
set -eu

# shellcheck source-path=SCRIPTDIR source=compare_common.sh
. "$(dirname "$0")/compare_common.sh"
turns=${1:-5}
steps=${2:-30}
batch=64
heat=yes
"$python" "$here/peers/step_heat.py" --check || heat=

two_ranks() { # command...
    mpirun -n 2 --bind-to none "$@"
}
peer() { # program, options...
    program=$here/peers/$1
    shift
    # shellcheck disable=SC2086
    two_ranks env ${PEER_ENV:-} "$python" "$program" "$@"
}
turn() { # model
    set -- --model "$1" --batch $batch --steps "$steps" --warmup 10
    two_ranks tests/bench/bench_step "$@" --sync lazy >>"$work/ours"
    tests/bench/bench_step "$@" --sync lazy >>"$work/one"
    peer step_pytorch.py "$@" >>"$work/ddp"
    [ -z "$heat" ] || peer step_heat.py "$@" >>"$work/heat"
}
against() { # model, file of the others, who they are
    ours=$(p50 "$work/ours")
    theirs=$(p50 "$2")
    echo "$1, 2 ranks, batch $batch each: Isotherm lazy $ours ms, $3 $theirs ms, ratio $(ratio "$ours" "$theirs");" \
        "$turns turns each, median of medians"
}
compare() { # model
    rm -f "$work"/*
    i=0
    while [ "$i" -lt "$turns" ]; do
        turn "$1"
        i=$((i + 1))
    done
    against "$1" "$work/ddp" "$(peer_of "$work/ddp")"
    if [ -n "$heat" ]; then
        against "$1" "$work/heat" "$(peer_of "$work/heat")"
        sed -n 's/.*"left_out": {\(..*\)}}$/    HeAT, left out: \1/p' "$work/heat" | sort -u
    fi
    against "$1" "$work/one" "Isotherm on 1 rank"
}

compare cnn
compare mlp
