#!/bin/sh
# SPDX-License-Identifier: MIT
# Compiles Fortran programs with the module isotherm and runs them: a TAP result for each step.
# usage: check_fortran.sh, in the build tree; uses MPIFC (mpifort or mpif90 beside MPICC), MPICC (mpicc),
#        MPIRUN and MPIRUN_FLAGS
set -u
export LC_ALL=C

root=$(cd "$(dirname "$0")/.." && pwd) || exit 1
. "$root/tests/test_env.sh"
cc=${MPICC:-mpicc}
launcher=${MPIRUN:-mpirun}
flags=${MPIRUN_FLAGS---oversubscribe --bind-to none}
build=$PWD
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# mpicc.openmpi has a mpifort.openmpi beside it.
find_compiler() {
    path=$(command -v "$cc") || path=mpicc
    for name in mpifort mpif90; do
        beside=$(dirname "$path")/$(basename "$path" | sed "s/mpicc/$name/")
        if [ "$beside" != "$path" ] && command -v "$beside"; then return; fi
    done
    echo mpifort
}
works() { # module or include file of MPI
    printf 'program empty\n%s\ncall MPI_Init(i)\nend program\n' "$1" >"$work/empty.f90"
    (cd "$work" && "$fc" empty.f90 -o empty) >"$work/why" 2>&1
}
fc=${MPIFC:-$(find_compiler)}
if ! works "include 'mpif.h'"; then
    echo "1..0 # SKIP no MPI compiler for Fortran: $fc does not work"
    exit 0
fi
if [ "$launcher" = no ]; then
    echo "1..0 # SKIP configure found no MPI launcher"
    exit 0
fi
strict=
warnings=
if "$fc" --version 2>/dev/null | grep -q 'GNU Fortran'; then
    strict="-std=f2008 -pedantic -fcheck=all -Wall -Wextra -Wimplicit-interface -Werror"
    warnings="-Wall -Wextra -Wno-unused-dummy-argument -Werror -fcheck=all"
fi

results=0
result() { # what should hold, command...
    name=$1
    shift
    results=$((results + 1))
    if "$@" >"$work/output" 2>&1; then
        echo "ok - $name"
    else
        echo "not ok - $name"
        sed 's/^/# /' "$work/output"
    fi
}

# ---- Compiling: .mod and .o files go to the working folder ----

module=$root/include/isotherm/isotherm.f90
compile_module() {
    # shellcheck disable=SC2086  # several words
    (cd "$work" && "$fc" $strict -c "$module" -o isotherm.o)
}
compile() { # program, files...
    program=$1
    shift
    # shellcheck disable=SC2086  # several words
    (cd "$work" && "$fc" $warnings "$@" -o "$program" \
        -L"$build/.libs" -lisotherm -Wl,-rpath,"$build/.libs")
}
compile_layout() {
    "$cc" -std=gnu11 -Wall -Wextra -Werror -I"$root/include" -Iinclude -c \
        "$root/tests/fortran_layout.c" -o "$work/layout.o" &&
        compile layout isotherm.o "$root/tests/fortran_layout.f90" layout.o
}

# ---- Running ----

on_ranks() { # ranks, program, arguments...
    ranks=$1
    shift
    # shellcheck disable=SC2086  # several words
    timeout -k 5 60 "$launcher" $flags -n "$ranks" "$@" </dev/null
}
# An error is told as a status and its message, and what iso_error_print prints.
errors() { # ranks
    on_ranks "$1" "$work/caller" errors && grep -q 'error.*: the gradient of "readout"' "$work/output"
}
mismatch() { # ranks
    on_ranks "$1" "$work/caller" mismatch
    status=$?
    echo "status $status"
    [ "$status" != 0 ] && [ "$status" != 124 ] && [ "$status" != 137 ] &&
        grep -q "rank $(($1 - 1)) has parameter \"readout\" 95 elements" "$work/output"
}
last_loss() { # program, arguments...
    on_ranks 2 "$@" >"$work/losses" || return 1
    sed -n 's/^step 3000: loss //p' "$work/losses"
}
same_loss() {
    lazy=$(last_loss "$work/own-arrays") && blocking=$(last_loss "$work/own-arrays" blocking) &&
        c=$(last_loss "$build/bin/own-arrays") || return 1
    echo "loss $lazy, blocking $blocking, of own_arrays.c $c"
    [ -n "$lazy" ] && [ "$lazy" = "$blocking" ] &&
        awk "BEGIN { exit !($lazy > 0 && $lazy / $c > 0.95 && $lazy / $c < 1.05) }"
}

result "the module compiles as Fortran 2008" compile_module
result "a program with mpif.h compiles" compile caller isotherm.o \
    "$root/tests/fortran_network.f90" "$root/tests/fortran_hooks.f90" "$root/tests/fortran_caller.f90"
result "a program compares types with C" compile_layout
result "types and constants are those of C" "$work/layout"
for ranks in 1 2 3; do
    result "lazy equals blocking, and one rank on the whole batch, on $ranks ranks" \
        on_ranks "$ranks" "$work/caller" train
    result "averages, optimizers, settings and statistics on $ranks ranks" \
        on_ranks "$ranks" "$work/caller" uses
    result "errors are told on $ranks ranks" errors "$ranks"
done
for ranks in 2 3; do
    result "of $ranks ranks one that lists other parameters is named" mismatch "$ranks"
done
if works "use mpi_f08"; then
    result "own_arrays with mpi_f08 compiles" \
        compile own-arrays "$module" "$root/examples/own_arrays.f90"
    result "own_arrays ends with the loss of its C form, lazy and blocking" same_loss
else
    echo "ok - own_arrays in Fortran # SKIP $fc has no mpi_f08"
    results=$((results + 1))
fi
echo "1..$results"
