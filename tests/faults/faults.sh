# SPDX-License-Identifier: MIT
# Sourced by the scripts that make calls of train fail: a short run on two ranks, from its beginning ("first") or
# resumed ("resumed"), with a fault, and what became of it. Expects tests/program_tests.sh, and to be in its $work.
# shellcheck shell=sh disable=SC2154

# A fault by itself never takes as long; a rank that waits for another one for so long was left alone.
export ISO_TIMEOUT="${ISO_TIMEOUT:-20}"
# Ranks of one node need no more of Open MPI, which then starts in half the time.
export OMPI_MCA_btl="${OMPI_MCA_btl:-self,vader}" OMPI_MCA_pml="${OMPI_MCA_pml:-ob1}"

# Without libtool's script around the program, into which the shim would be loaded, too.
faults_prepare() { # build tree
    faults=$PWD
    build=$1
    "${MPICC:-mpicc}" -std=c11 -D_GNU_SOURCE -g -O1 -Wall -Wextra -fno-builtin -shared -fPIC -o faults.so "$root"/tests/faults/*.c \
        -ldl || return 1
    data_set images 96 40 8
    mkdir first resumed whole
    (cd whole && faults_run FAULT_COUNT="$faults/count.first" && cp state ../expected) || return 1
    cp whole/state.step-*4 whole/state.step-*4.rank-* resumed
    cp resumed/state* whole
    rm whole/state.step-*6* whole/log
    (cd whole && faults_run FAULT_COUNT="$faults/count.resumed" && cmp state ../expected)
}

# One run in the folder where it is called.
faults_run() { # variable...
    # shellcheck disable=SC2086  # flags are several words
    timeout -k 5 "${FAULT_LIMIT:-60}" env LD_LIBRARY_PATH="$build/.libs:${LD_LIBRARY_PATH:-}" "$@" \
        "$launcher" $flags -n 2 env LD_PRELOAD="$faults/faults.so" "$build/bin/.libs/train" --data "$faults/images" \
        --model mlp --batch 8 --steps 6 --quiet --checkpoint state --checkpoint-every 2 --resume auto --log log \
        ${FAULT_OPTIONS:-} >output 2>&1 </dev/null
}

faults_count() { # phase, kind, rank: the number of calls
    sed -n "s/^$2 //p" "$faults/count.$1.$3" 2>/dev/null
}

# Whether the saved sets are those with which the phase began.
faults_unchanged() { # phase
    for file in "$faults/$1"/state.* state.step-*; do
        [ -e "$file" ] || continue
        cmp -s "$faults/$1/${file##*/}" "${file##*/}" || return 1
    done
}

# Whether it told its error once. It may add what becomes of a run that MPI_Abort ends, and of a rank that did not start.
faults_sentence() {
    grep -v '^train: SIGTERM: ' output >told
    one_sentence train . told
}

# What a run with a fault came to, from its status and output.
faults_outcome() { # status
    if [ "$1" = 124 ] || [ "$1" = 137 ]; then
        echo HANG
    elif has_crashed output || grep -q 'exited on signal' output; then
        echo CRASH
    elif [ ! -e hit ]; then
        echo unreached
    elif [ "$1" = 0 ]; then
        if cmp -s state "$faults/expected"; then echo success; else echo WRONG; fi
    elif grep -q "waited $ISO_TIMEOUT s" output; then
        echo ALONE
    elif grep -q 'An error occurred in MPI_' output; then
        echo error-of-mpi
    elif faults_sentence; then
        echo error
    elif ! grep -q '^isotherm\|^train: [^S]' output && grep -q 'ORTE_ERROR_LOG: .* in file .*show_help' output; then
        echo error-of-mpi # which the mpirun of Open MPI 4.1.4 sometimes fails to print
    else
        echo SENTENCES
    fi
}

# One run with a fault, in a folder of its own, and what it came to.
faults_once() { # phase, KIND:N:RANK
    rm -rf "$case"
    mkdir "$case" && cd "$case" || return 1
    cp "$faults/$1"/* . 2>/dev/null
    status=0
    faults_run FAULT="$2" FAULT_HIT="$case/hit" || status=$?
    outcome=$(faults_outcome $status)
    case $outcome in
    *[a-z]) ;;
    *) return ;;
    esac
    faults_unchanged "$1" && return
    # The newest complete set loads, if there is one.
    mv output output.fault
    faults_run && cmp -s state "$faults/expected" || outcome=LOST
}

# Prints what a fault came to, in capitals if it must not; the folder of such a case is kept. A busy machine may stop a
# run for so long that a limit is reached, so that is tried again.
faults_try() { # phase, KIND:N:RANK
    case="$faults/case.$1.$2"
    faults_once "$1" "$2"
    case $outcome in
    HANG | ALONE | LOST) faults_once "$1" "$2" ;;
    esac
    echo "$1 $2 $outcome $(head -n 1 "$case/hit" 2>/dev/null)"
    cd "$faults" || return 1
    case $outcome in
    *[a-z]) rm -r "$case" ;;
    esac
}
