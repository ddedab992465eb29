#!/bin/sh
# SPDX-License-Identifier: MIT
# Compiles a C++ program against the headers and the library, and runs it: a TAP result for each step.
# usage: check_cxx.sh, in the build tree; uses MPICXX (mpicxx as MPICC is called), MPICC (mpicc), MPIRUN and
#        MPIRUN_FLAGS
set -u
export LC_ALL=C

root=$(cd "$(dirname "$0")/.." && pwd) || exit 1
. "$root/tests/test_env.sh"
compiler=${MPICXX:-$(echo "${MPICC:-mpicc}" | sed 's/\(.*\)mpicc/\1mpicxx/')}
launcher=${MPIRUN:-mpirun}
flags=${MPIRUN_FLAGS---oversubscribe --bind-to none}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

if ! echo 'int main() { return 0; }' >"$work/empty.cpp" ||
    ! "$compiler" -std=c++11 "$work/empty.cpp" -o "$work/empty" >"$work/why" 2>&1; then
    echo "1..0 # SKIP no MPI compiler for C++: $compiler does not work"
    exit 0
fi

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
# The headers of MPI are not held to this standard.
compile() { # standard
    mpi=$("$compiler" --showme:incdirs 2>/dev/null | sed 's/\([^ ]*\)/-isystem \1/g')
    # shellcheck disable=SC2086  # several words
    "$compiler" -std="$1" -Wall -Wextra -Wshadow -Wconversion -Wpedantic -Werror $mpi \
        -I"$root/include" -Iinclude "$root/tests/cxx_caller.cpp" -o "$work/caller" \
        -L.libs -lisotherm -Wl,-rpath,"$PWD/.libs"
}
on_ranks() { # ranks
    # shellcheck disable=SC2086  # several words
    timeout -k 5 60 "$launcher" $flags -n "$1" "$work/caller" </dev/null
}

echo "1..6"
result "compiles as C++11 without a warning" compile c++11
result "compiles as C++20 without a warning" compile c++20
result "compiles as C++17 without a warning" compile c++17
if [ "$launcher" = no ]; then
    for ranks in 1 2 3; do echo "ok - averages on $ranks ranks # SKIP no MPI launcher"; done
    exit 0
fi
for ranks in 1 2 3; do result "averages on $ranks ranks" on_ranks "$ranks"; done
