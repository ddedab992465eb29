#!/bin/sh
# SPDX-License-Identifier: MIT
# A serial program with arrays of its own, and the same one made data-parallel, in C, C++ and Fortran: how many
# lines differ, what the documentation shows, and what both compute. A TAP result for each step.
# usage: check_residual_net.sh, in the build tree; uses MPIRUN, MPIRUN_FLAGS, MPICXX and MPIFC
set -u
export LC_ALL=C

root=$(cd "$(dirname "$0")/.." && pwd) || exit 1
. "$root/tests/test_env.sh"
launcher=${MPIRUN:-mpirun}
flags=${MPIRUN_FLAGS---oversubscribe --bind-to none}
build=$PWD
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

changed() { # suffix of both programs: the lines that differ, as "-line" and "+line"
    diff -u "$root/examples/residual_net.$1" "$root/examples/residual_net_mpi.$1" | sed '1,2d' | grep '^[-+]'
}
few_lines() { # suffix
    lines=$(changed "$1" | wc -l)
    echo "$lines lines differ"
    changed "$1" | awk 'length($0) > 101 { print "too long: " $0; found = 1 } END { exit found }' &&
        [ "$lines" -gt 0 ] && [ "$lines" -le 30 ]
}
shown() { # suffix, number of the diff on the page
    awk -v wanted="$2" '/^```diff/ { n++ } /^```$/ { inside = 0 } inside && n == wanted; /^```diff/ { inside = 1 }' \
        "$page" | grep '^[-+]' >"$work/shown"
    changed "$1" | diff - "$work/shown"
}

on_ranks() { # ranks, arguments...
    ranks=$1
    shift
    # shellcheck disable=SC2086  # several words
    timeout -k 5 60 "$launcher" $flags -n "$ranks" "$@" </dev/null
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
same_losses() { # ranks, parallel program, serial program
    on_ranks "$1" "$2" >"$work/lazy" && "$3" >"$work/serial" &&
        compare "$work/serial" "$work/lazy"
}
same_bits() { # ranks, parallel program
    on_ranks "$1" "$2" 200 blocking >"$work/blocking" && on_ranks "$1" "$2" >"$work/lazy" &&
        grep checksum "$work/lazy" && diff "$work/lazy" "$work/blocking"
}
refuses_ranks() { # parallel program
    on_ranks 7 "$1" >"$work/lazy" 2>&1
    refused=$?
    cat "$work/lazy"
    [ "$refused" != 0 ] && grep -qE '^error( on rank [0-9])?: ranks must divide 60$' "$work/lazy" &&
        ! grep -qE 'loss|ERROR STOP|Backtrace' "$work/lazy"
}
on_all_ranks() { # parallel program, serial program, name, ranks...
    parallel=$1 serial=$2 in=$3
    shift 3
    for ranks; do
        if [ "$launcher" = no ]; then
            echo "ok - losses on $ranks ranks$in # SKIP no MPI launcher"
            echo "ok - bits on $ranks ranks$in # SKIP no MPI launcher"
            continue
        fi
        result "losses on $ranks ranks are those of the serial program$in" \
            same_losses "$ranks" "$parallel" "$serial"
        result "lazy gives the bits of blocking on $ranks ranks$in" same_bits "$ranks" "$parallel"
    done
    if [ "$launcher" = no ]; then
        echo "ok - ranks that do not divide the batch$in # SKIP no MPI launcher"
    else
        result "ranks that do not divide the batch are refused with one sentence$in" refuses_ranks "$parallel"
    fi
}

# ---- The same programs in other languages ----

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
library="-L$build/.libs -lisotherm -Wl,-rpath,$build/.libs"
parallel_cxx() {
    # shellcheck disable=SC2086  # several words
    compile_cxx parallel_cxx "$root/examples/residual_net_mpi.cpp" -I"$root/include" -I"$build/include" $library
}
parallel_fortran() {
    # shellcheck disable=SC2086  # several words
    compile_fortran parallel_fortran "$root/include/isotherm/isotherm.f90" \
        "$root/examples/residual_net_mpi.f90" $library
}
other_language() { # name, function's suffix, file's suffix
    result "at most 30 lines differ in $1, of at most 100 columns" few_lines "$3"
    result "the serial program in $1 compiles" "compile_$2" "serial_$2" "$root/examples/residual_net.$3"
    result "it computes the losses of the C program" as_in_c "serial_$2"
    result "the parallel program in $1 compiles" "parallel_$2"
    on_all_ranks "$work/parallel_$2" "$work/serial_$2" " in $1" 2 3
}
other_is_skipped() { # name, compiler
    for test in 1 2 3 4 5 6 7 8 9; do
        echo "ok - test $test in $1 # SKIP $2 does not work"
    done
}

echo "1..30"
result "at most 30 lines differ, of at most 100 columns" few_lines c
result "gradient-engine.md shows them" shown c 1
on_all_ranks bin/residual-net-mpi bin/residual-net "" 1 2 3 4
if compiles "$cxx" 'int main() { return 0; }' cpp; then
    other_language C++ cxx cpp
else
    other_is_skipped C++ "$cxx"
fi
result "gradient-engine.md shows the lines that differ in Fortran" shown f90 2
if compiles "$fc" 'use mpi_f08\nend' f90; then
    other_language Fortran fortran f90
else
    other_is_skipped Fortran "$fc"
fi
