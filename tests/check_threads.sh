#!/bin/sh
# SPDX-License-Identifier: MIT
# Starts train on cores given by mpirun and taskset, and checks what it says about them, as TAP.
# usage: check_threads.sh, in the build tree; uses MPIRUN
# Not -e: what fails here is a result, not the end.
set -u
export LC_ALL=C

root=$(cd "$(dirname "$0")/.." && pwd) || exit 1
. "$root/tests/test_env.sh"
launcher=${MPIRUN:-mpirun}
if [ "$launcher" = no ] || ! "$launcher" --version 2>/dev/null | grep -qE 'Open MPI|OpenRTE'; then
    echo "1..0 # SKIP the options that bind ranks are Open MPI's, and that is not here"
    exit 0
fi
cores=$(env -u OMP_NUM_THREADS nproc)
if [ "$cores" -lt 2 ] || ! "$launcher" --bind-to core -n 2 true 2>/dev/null; then
    echo "1..0 # SKIP two ranks cannot be bound to cores of their own here"
    exit 0
fi
train=$PWD/bin/train
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
tests=0

result() { # 0 for good, what should hold
    tests=$((tests + 1))
    if [ "$1" = 0 ]; then
        echo "ok - $2"
    else
        echo "not ok - $2"
        sed 's/^/# /' stdout stderr
    fi
}
run() { # flags of mpirun -- arguments of train
    flags=
    while [ "$1" != -- ]; do
        flags="$flags $1"
        shift
    done
    shift
    # shellcheck disable=SC2086  # flags are several words
    timeout -k 5 30 "$launcher" $flags "$train" --model mlp --steps 2 "$@" >stdout 2>stderr </dev/null
}
warnings() { grep -c '^train: warning: ' stderr; }

run --bind-to none -n 2 --
[ "$(warnings)" = 0 ] && grep -qE '^cores  *ranks 0-1: cores 0-[0-9]+ of host .*; 1 compute thread each$' stdout
result $? "ranks that are not bound are told of their cores, and not warned"

run --bind-to core -n 2 -- --log log
[ "$(warnings)" = 1 ] &&
    grep -q '^train: warning: ranks 0-1: bound to one core, .* and the progress thread .*--bind-to none' stderr
result $? "ranks bound to one core each are warned once, with the flag that helps"
grep -qE '^cores  *rank 0: core [0-9]+ of host .*; rank 1: core [0-9]+ of host ' stdout &&
    grep -qE '"cores":"rank 0: core [0-9]+ of host .*; rank 1: core [0-9]+ of host ' log
result $? "the masks of both ranks are in the report and in the log"

run --bind-to core -n 2 -- --progress poll && [ "$(warnings)" = 0 ]
result $? "one core is enough where no thread drives progress"

run --bind-to core -n 1 -- --threads 2
[ "$(warnings)" = 1 ] && grep -q '^train: warning: rank 0: bound to one core, .*2 compute threads .*slot:PE=2' stderr
result $? "two threads on one core are warned about"

run --oversubscribe --bind-to none -n 2 -- --threads "$cores"
[ "$(warnings)" = 1 ] &&
    grep -q "^train: warning: ranks 0-1: $((2 * cores)) compute threads for the $cores cores of host .*ppr:1:node" stderr
result $? "more threads than cores are warned about"

run --oversubscribe --bind-to none -n 2 -- --threads "$cores" --quiet && [ ! -s stderr ] && [ ! -s stdout ]
result $? "--quiet leaves the warnings out"

ISO_LOG=info timeout -k 5 30 "$launcher" --bind-to core -n 2 "$train" --model mlp --steps 2 --quiet \
    >stdout 2>stderr </dev/null
grep -qE '^isotherm\[0\] info: core [0-9]+ of host .*, 1 compute thread$' stderr &&
    grep -qE '^isotherm\[1\] info: core [0-9]+ of host .*, 1 compute thread$' stderr
result $? "each rank logs the cores it was given"

ISO_PROGRESS_CORE=own ISO_LOG=info timeout -k 5 30 "$launcher" --bind-to core -n 2 "$train" --model mlp --steps 2 \
    --quiet >stdout 2>stderr </dev/null
[ $? = 0 ] && ! grep -q 'a core of its own' stderr
result $? "a progress thread shares the only core of its rank, whatever is asked"

if command -v taskset >/dev/null; then
    timeout -k 5 30 taskset -c 0 "$launcher" --oversubscribe --bind-to none -n 2 "$train" --model mlp \
        --steps 2 >stdout 2>stderr </dev/null
    [ "$(warnings)" = 1 ] && grep -q '^train: warning: ranks 0-1: 2 compute threads for the 1 core of host ' stderr
    result $? "cores that mpirun does not have are not counted"
fi
if [ "$cores" -ge 4 ]; then
    run --bind-to none -n 2 -- --threads 2
    [ "$(warnings)" = 0 ] && grep -q ', bound to a share of them$' stdout
    result $? "ranks with several threads each keep to a share of the cores"
    ISO_PROGRESS_CORE=own ISO_LOG=info timeout -k 5 30 "$launcher" --bind-to none -n 2 "$train" --model mlp --steps 2 \
        --quiet >stdout 2>stderr </dev/null
    [ "$(grep -c 'the progress thread has a core of its own$' stderr)" = 2 ]
    result $? "progress threads get cores of their own on request"
fi
echo "1..$tests"
