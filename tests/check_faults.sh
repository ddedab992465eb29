#!/bin/sh
# SPDX-License-Identifier: MIT
# Makes some calls of a training run fail, of each kind of call and on each rank: the run must end with one sentence, or
# as if nothing had happened, and can be resumed. "make check-faults" does so with all calls. Prints the results as TAP.
# usage: check_faults.sh, in the build tree; uses MPICC, MPIRUN and MPIRUN_FLAGS
set -u

root=$(cd "$(dirname "$0")/.." && pwd) || exit 1
build=$PWD
# shellcheck source=tests/program_tests.sh
. "$root/tests/program_tests.sh"
# shellcheck source=tests/idx_files.sh
. "$root/tests/idx_files.sh"
# shellcheck source=tests/faults/faults.sh
. "$root/tests/faults/faults.sh"
need_launcher
if ! [ -x "$build/bin/.libs/train" ]; then
    echo "1..0 # SKIP the programs are linked statically, so that nothing can be put between them and the library"
    exit 0
fi
enter_work
shown="output output.fault"
faults_prepare "$build"
result $? "runs without faults end with the same parameters, resumed or not"

# Faults that runs once did not survive, then some more. They run at the same time: most of a run is waiting.
# ("new-": only calls with a stack that no call before had.)
last=$(faults_count resumed new-thread 0)
cases="
    first new-thread:4:1
    resumed new-thread:$last:0
    first new-alloc:2:1
    first new-alloc:160:0
    first poll:8:0
    resumed new-mpi:22:1
    first new-sync:3:0
    resumed new-rename:2:0
    first new-write:10:1
    first new-map:5:0"
echo "$cases" | while read -r phase fault; do
    [ -z "$phase" ] || echo "$phase" "$fault"
done | xargs -P 4 -L 1 sh "$root/tests/faults/run_faults.sh" --job "$build" >outcomes
while read -r phase fault outcome function; do
    case $outcome in
    unreached) good=1 ;; # the run does not make that call any more: name another one
    *[a-z]*) good=0 ;;
    *) good=1 ;;
    esac
    [ $good = 0 ] || (cd "case.$phase.$fault" && explain)
    result $good "$phase run, $fault${function:+, in $function}: $outcome"
done <outcomes
[ "$(wc -l <outcomes)" = "$(echo "$cases" | grep -c :)" ]
result $? "all faults were tried"
print_plan
