#!/bin/sh
# SPDX-License-Identifier: MIT
# Runs trainings whose outputs are files that somebody still needs. Prints the results as TAP.
# usage: check_files.sh, in the build tree
set -u

root=$(cd "$(dirname "$0")/.." && pwd) || exit 1
# shellcheck source=tests/program_tests.sh
. "$root/tests/program_tests.sh"
. "$root/tests/idx_files.sh"
job=
trap '[ -z "$job" ] || kill -9 "$job"; exit 143' INT TERM HUP
enter_work
data_set images 96 40 8
set -- --data images --model mlp --quiet

# What holds, a pattern of the sentence, and the run. No file may change.
refused() { # name, pattern, program, arguments...
    name=$1
    sentence=$2
    shift 2
    find . -type f ! -name stdout ! -name stderr ! -name sums ! -name results -exec cksum {} + >sums
    run_alone "$@"
    [ "$status" = 1 ] && one_sentence train "$sentence" stderr && cksum_of sums
    result $? "$name"
}
cksum_of() { # list
    find . -type f ! -name stdout ! -name stderr ! -name sums ! -name results -exec cksum {} + | cmp -s - "$1"
}

# ---- Traces ----

run_alone "$train" "$@" --steps 3 --checkpoint c --checkpoint-every 1 --trace trace
[ "$status" = 0 ] && grep -q displayTimeUnit trace
result $? "a trace is written"
refused "a trace does not replace a file" 'the trace c exists: give another --trace, or .* --overwrite$' \
    "$train" "$@" --steps 1 --trace c
refused "nor does that of a resumed run" 'the trace trace exists: give another --trace, or .* --overwrite$' \
    "$train" "$@" --steps 4 --checkpoint c --checkpoint-every 1 --resume c --extend --trace trace
run_alone "$train" "$@" --steps 3 --checkpoint c --checkpoint-every 1 --resume c --trace trace
[ "$status" = 0 ]
result $? "a finished run that is resumed does not mind its own"
echo mine >mine
run_alone "$train" "$@" --steps 1 --trace mine --overwrite
[ "$status" = 0 ] && grep -q displayTimeUnit mine
result $? "--overwrite replaces it"

print_plan
