#!/bin/sh
# SPDX-License-Identifier: MIT
# Stops one rank of a program where the others wait for it, and checks that ISO_TIMEOUT ends them: with a sentence that
# names what they wait for, and soon. Lets one compute for ever, and checks that ISO_STEP_TIMEOUT ends it. Prints the
# results as TAP.
# usage: check_stopped.sh, in the build tree; uses MPICC, MPIRUN and MPIRUN_FLAGS
set -u

root=$(cd "$(dirname "$0")/.." && pwd) || exit 1
# shellcheck source=tests/program_tests.sh
. "$root/tests/program_tests.sh"
. "$root/tests/idx_files.sh"
need_launcher
enter_work
shown=output
data_set images 96 40 8
# Ranks may start seconds apart on a busy machine, and nothing but the wait in question may reach the limit.
export ISO_TIMEOUT=8
extra=

# The last of so many ranks, which has $extra in its environment, stops in a function; the others end within
# ISO_TIMEOUT and what they take to tell it.
stops_in() { # function, ranks, what is waited for, program, arguments...
    place=$1
    ranks=$2
    sentence=$3
    program=$4
    shift 4
    if ! [ -e "$place.so" ]; then
        ${MPICC:-mpicc} -shared -fPIC -DSTOP_AT="$place" -o "$place.so" "$root/tests/stop_rank.c" || exit 1
    fi
    status=0
    # shellcheck disable=SC2086  # flags and $extra are several words
    timeout -k 5 60 "$launcher" $flags -n $((ranks - 1)) "$programs/$program" "$@" : \
        -n 1 env $extra LD_PRELOAD="$work/$place.so" "$programs/$program" "$@" >output 2>&1 </dev/null || status=$?
    # A rank that hears nothing from rank 0 for two seconds says its sentence itself, perhaps for the second time.
    told=$(grep "rank [0-9].* waited 8 s .*$sentence.*(ISO_TIMEOUT sets the limit)" output | sort -u | grep -c .)
    echo "status $status, told $told times" >>output
    has_failed && [ "$told" -ge 1 ] && [ "$told" -lt "$ranks" ]
    result $? "$program: a rank that is stopped in $place ends the others"
}

set -- --data images --model mlp --epochs 2 --quiet
well='in the check that all ranks are well'
stops_in MPI_Init_thread 2 'in MPI_Init_thread' train "$@"
stops_in iso_comm_create 2 'in the barrier before MPI_Comm_dup' train "$@"
stops_in MPI_Comm_dup 2 'in MPI_Comm_dup' train "$@"
stops_in MPI_Comm_create_group 3 'in MPI_Comm_create_group' train "$@"
extra=STOP_AFTER=1 # ranks meet in an MPI_Ibcast first
stops_in MPI_Ibcast 2 "in the comparison of the ranks' environments" train "$@"
extra="ISO_IALLREDUCE=many STOP_AFTER=3" # and compare in two more
stops_in MPI_Ibcast 2 'in the report of a bad environment variable' mnist images
extra=
stops_in iso_topology_create 2 'in a reduction' train "$@"
stops_in iso_dataset_open 3 "$well" train "$@"
stops_in iso_module_to 3 "$well" train "$@"
stops_in iso_progress_bar_finish 3 "$well" train "$@"
stops_in iso_trace_text 2 'in a gather' train "$@" --trace trace
stops_in MPI_Finalize 3 'in MPI_Finalize' train "$@"
stops_in iso_dataset_open 2 "$well" sweep --out study --data images --model mlp -- "a: --sync lazy"
stops_in MPI_Finalize 2 'in MPI_Finalize' sweep --out other --data images --model mlp -- "a: --sync lazy"
stops_in iso_dataset_open 2 'in a reduction' mnist images
stops_in MPI_Finalize 2 'in MPI_Finalize' mnist-daso images
stops_in MPI_Finalize 2 'in MPI_Finalize' mnist --help

# The last of so many ranks computes for ever from a later step on: it ends itself, and says so once. The others, which
# have the same limit, wait for it and say nothing.
export ISO_STEP_TIMEOUT=3 ISO_TIMEOUT=60
set -- --data images --model mlp --epochs 100000 --quiet
extra="STOP_AFTER=30 STOP_COMPUTES=1 LD_PRELOAD=$work/iso_optimizer_step.so"
${MPICC:-mpicc} -shared -fPIC -DSTOP_AT=iso_optimizer_step -o iso_optimizer_step.so "$root/tests/stop_rank.c" || exit 1
computes_for_ever() { # ranks, arguments...
    ranks=$1
    shift
    others="-n $((ranks - 1)) $programs/train $* :"
    [ "$ranks" = 1 ] && others=
    status=0
    rm -rf records
    # shellcheck disable=SC2086  # flags, $others and $extra are several words
    ISO_RECORDER=records timeout -k 5 60 "$launcher" $flags $others -n 1 env $extra "$programs/train" "$@" >output 2>&1 \
        </dev/null || status=$?
    sentence="rank $((ranks - 1)) of $ranks on $(uname -n) has made no progress for 3 s: "
    sentence="${sentence}the last operation that it began was [^(]* (ISO_STEP_TIMEOUT sets the limit)"
    echo "status $status" >>output
    has_failed && [ "$(grep -c 'ISO_STEP_TIMEOUT' output)" = 1 ] && grep -q "$sentence" output &&
        ! grep -q 'ISO_TIMEOUT sets' output
    result $? "a rank of $ranks that computes for ever ends itself ($*)"
    "$programs/postmortem" records --stacks >output 2>&1
    grep -q "stack at: $sentence" output && grep -q 'iso_optimizer_step+' output
    result $? "and its flight record says why and where"
}
computes_for_ever 1 "$@" --progress thread
computes_for_ever 3 "$@" --progress poll
# A rank that waits for others is no such rank: ISO_TIMEOUT ends it. Only the ranks that wait have the limit here.
export ISO_TIMEOUT=8
extra="STOP_AFTER=30 STOP_COMPUTES=1 ISO_STEP_TIMEOUT=0"
stops_in iso_optimizer_step 2 'is late: it has computed or waited elsewhere for' train "$@"
! grep -q 'ISO_STEP_TIMEOUT' output
result $? "though ISO_STEP_TIMEOUT is shorter than the wait"
unset ISO_STEP_TIMEOUT
extra=
set -- --data images --model mlp --epochs 2 --quiet

# A limit that no start keeps: what is still under way then must not crash the end.
export ISO_TIMEOUT=0.001
good=0
for start in 1 2 3 4 5 6 7 8 9 10; do
    status=0
    # shellcheck disable=SC2086
    timeout -k 5 60 "$launcher" $flags -n 3 "$programs/train" "$@" >output 2>&1 </dev/null || status=$?
    [ $status = 1 ] && grep -q 'ISO_TIMEOUT sets the limit' output && ! grep -q 'Signal: ' output && continue
    echo "# start $start: status $status"
    sed 's/^/# /' output
    good=1
done
result $good "10 starts that time out all end with 1"

print_plan
