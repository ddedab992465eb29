#!/bin/sh
# SPDX-License-Identifier: MIT
# A serial program with arrays of its own, and the same one made data-parallel: how many lines differ,
# what the documentation shows, and what both compute. A TAP result for each step.
# usage: check_residual_net.sh, in the build tree; uses MPIRUN and MPIRUN_FLAGS
set -u
export LC_ALL=C

root=$(cd "$(dirname "$0")/.." && pwd) || exit 1
. "$root/tests/test_env.sh"
launcher=${MPIRUN:-mpirun}
flags=${MPIRUN_FLAGS---oversubscribe --bind-to none}
serial=$root/examples/residual_net.c
parallel=$root/examples/residual_net_mpi.c
page=$root/docs/gradient-engine.md
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

result() { # what should hold, command...
    name=$1
    shift
    if "$@" >"$work/output" 2>&1; then
        echo "ok - $name"
    else
        echo "not ok - $name"
        sed 's/^/# /' "$work/output"
    fi
}

changed() { # the lines that differ, as "-line" and "+line"
    diff -u "$serial" "$parallel" | sed '1,2d' | grep '^[-+]'
}
few_lines() {
    lines=$(changed | wc -l)
    echo "$lines lines differ"
    changed | awk 'length($0) > 101 { print "too long: " $0; found = 1 } END { exit found }' &&
        [ "$lines" -gt 0 ] && [ "$lines" -le 30 ]
}
shown() {
    sed -n '/^```diff/,/^```$/p' "$page" | grep '^[-+]' >"$work/shown"
    changed | diff - "$work/shown"
}

on_ranks() { # ranks, arguments...
    ranks=$1
    shift
    # shellcheck disable=SC2086  # several words
    timeout -k 5 60 "$launcher" $flags -n "$ranks" bin/residual-net-mpi "$@" </dev/null
}
# The sum of a batch is rounded in another order on several ranks.
same_losses() { # ranks
    on_ranks "$1" >"$work/lazy" && bin/residual-net >"$work/serial" || return 1
    paste -d ' ' "$work/serial" "$work/lazy" >"$work/both"
    cat "$work/both"
    awk '{ d = $4 - $8; if (d < 0) d = -d; worst = d / $4 > worst ? d / $4 : worst }
        $1 " " $2 " " $3 != $5 " " $6 " " $7 { exit 1 }
        END { print NR " lines, at most " worst " apart"; exit !(NR == 11 && worst < 1e-3) }' \
        "$work/both"
}
same_bits() { # ranks
    on_ranks "$1" 200 blocking >"$work/blocking" && on_ranks "$1" >"$work/lazy" &&
        grep checksum "$work/lazy" && diff "$work/lazy" "$work/blocking"
}

echo "1..8"
result "at most 30 lines differ, of at most 100 columns" few_lines
result "gradient-engine.md shows them" shown
for ranks in 1 2 4; do
    if [ "$launcher" = no ]; then
        echo "ok - losses on $ranks ranks # SKIP no MPI launcher"
        echo "ok - bits on $ranks ranks # SKIP no MPI launcher"
        continue
    fi
    result "losses on $ranks ranks are those of the serial program" same_losses "$ranks"
    result "lazy gives the bits of blocking on $ranks ranks" same_bits "$ranks"
done
