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
compare() { # outputs
    paste -d ' ' "$1" "$2" >"$work/both"
    cat "$work/both"
    awk '{ d = $4 - $8; if (d < 0) d = -d; worst = d / $4 > worst ? d / $4 : worst }
        $1 " " $2 " " $3 != $5 " " $6 " " $7 { exit 1 }
        END { print NR " lines, at most " worst " apart"; exit !(NR == 11 && worst < 1e-3) }' \
        "$work/both"
}
same_losses() { # ranks
    on_ranks "$1" >"$work/lazy" && bin/residual-net >"$work/serial" &&
        compare "$work/serial" "$work/lazy"
}
same_bits() { # ranks
    on_ranks "$1" 200 blocking >"$work/blocking" && on_ranks "$1" >"$work/lazy" &&
        grep checksum "$work/lazy" && diff "$work/lazy" "$work/blocking"
}

# ---- The same serial program in other languages ----

cxx=${MPICXX:-$(echo "${MPICC:-mpicc}" | sed 's/\(.*\)mpicc/\1mpicxx/')}
find_fortran() { # mpicc.openmpi has a mpifort.openmpi beside it
    path=$(command -v "${MPICC:-mpicc}") || path=mpicc
    for name in mpifort mpif90; do
        beside=$(dirname "$path")/$(basename "$path" | sed "s/mpicc/$name/")
        if [ "$beside" != "$path" ] && command -v "$beside"; then return; fi
    done
    echo mpifort
}
fc=${MPIFC:-$(find_fortran)}
compiles() { # compiler, empty program
    printf '%b\n' "$2" >"$work/empty.$3" && (cd "$work" && "$1" "empty.$3" -o empty) >"$work/why" 2>&1
}
compile_cxx() { # program, files and flags...
    program=$1
    shift
    "$cxx" -std=c++11 -Wall -Wextra -Werror "$@" -o "$work/$program"
}
compile_fortran() { # program, files and flags...; .mod files go to the working folder
    program=$1
    shift
    (cd "$work" && "$fc" "$@" -o "$program")
}
# Rounding differs: Fortran sums in another order.
as_in_c() { # program
    "$work/$1" >"$work/other" && bin/residual-net >"$work/c" && compare "$work/c" "$work/other"
}
other_language() { # name, suffix, serial program, compiler
    result "the serial program in $1 compiles" "compile_$2" "serial_$2" "$root/examples/residual_net.$3"
    result "it computes the losses of the C program" as_in_c "serial_$2"
}
other_is_skipped() { # name, compiler
    echo "ok - the serial program in $1 # SKIP $2 does not work"
    echo "ok - the losses of the program in $1 # SKIP $2 does not work"
}

echo "1..14"
result "at most 30 lines differ, of at most 100 columns" few_lines
result "gradient-engine.md shows them" shown
for ranks in 1 2 3 4; do
    if [ "$launcher" = no ]; then
        echo "ok - losses on $ranks ranks # SKIP no MPI launcher"
        echo "ok - bits on $ranks ranks # SKIP no MPI launcher"
        continue
    fi
    result "losses on $ranks ranks are those of the serial program" same_losses "$ranks"
    result "lazy gives the bits of blocking on $ranks ranks" same_bits "$ranks"
done

if compiles "$cxx" 'int main() { return 0; }' cpp; then
    other_language C++ cxx cpp
else
    other_is_skipped C++ "$cxx"
fi
if compiles "$fc" 'use mpi_f08\nend' f90; then
    other_language Fortran fortran f90
else
    other_is_skipped Fortran "$fc"
fi
