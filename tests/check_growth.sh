#!/bin/sh
# SPDX-License-Identifier: MIT
# Counts the instructions of set-up, of a step and of saving, of a network and of one with four times its layers or
# buckets, as TAP. None may grow faster than linearly.
# usage: check_growth.sh, in the build tree; uses MPIRUN. Skipped without valgrind.
# Not -e: what fails here is a result, not the end.
set -u

root=$(cd "$(dirname "$0")/.." && pwd) || exit 1
# shellcheck source=tests/program_tests.sh
. "$root/tests/program_tests.sh"
need_launcher
if ! command -v valgrind >/dev/null || ! command -v callgrind_annotate >/dev/null; then
    echo "1..0 # SKIP valgrind is not installed"
    exit 0
fi
growth=$PWD/tests/bench/bench_growth
enter_work
limit=$((10 * limit)) # valgrind is slow
export OMPI_MCA_btl=self,vader OMPI_MCA_pml=ob1

counted() { # ranks, options of bench_growth...
    count_ranks=$1
    shift
    rm -f cost.*
    run "$count_ranks" valgrind --tool=callgrind --callgrind-out-file=cost.%p --toggle-collect=measured_part "$growth" "$@"
}
# All instructions of one rank.
all_of() { # options of bench_growth...
    counted 0 "$@"
    sed -n 's/.*Collected : //p' stderr
}
# Of two ranks, the fewer instructions in the library's own code for gradients: what ranks wait varies.
own_of() { # options of bench_growth...
    counted 2 "$@"
    for cost in cost.*; do
        callgrind_annotate --auto=no --threshold=100 "$cost" | tr -d , | awk '/src\/(parallel|exchange)\// { sum += $1 }
            END { printf "%d\n", sum }'
    done | sort -n | head -n 1
}
# Four times as much: at most 4 to the power of 1.1.
is_linear() { # what, instructions, those of four times as much
    awk -v less="${2:-0}" -v more="${3:-0}" 'BEGIN { exit !(less > 0 && more > 0 && more < 4.6 * less) }'
    result $? "$1: ${2:-no} instructions, of four times as much ${3:-none}"
}
layers() { # what, options of bench_growth...
    layers_what=$1
    shift
    less=$(all_of "$@" --layers 250)
    is_linear "$layers_what" "$less" "$(all_of "$@" --layers 1000)"
}
buckets() { # what, options of bench_growth...
    buckets_what=$1
    shift
    less=$(own_of --layers 1000 --warmup 2 --steps 2 --bucket-kb 1.25 "$@")
    is_linear "$buckets_what" "$less" "$(own_of --layers 1000 --warmup 2 --steps 2 --bucket-kb 0 "$@")"
}

layers "setting up layers" --what setup
layers "a step of layers, with clipping" --warmup 1 --steps 1 --clip
layers "saving and loading layers" --what save --warmup 1
buckets "a step of buckets, on two ranks"
buckets "a step of buckets with ZeRO, on two ranks" --set zero=yes
print_plan
