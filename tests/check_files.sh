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

# ---- Outputs that are inputs, or one file ----

protected() { # what holds, input option, output option, arguments...
    name=$1
    kept=$2
    output=$3
    shift 3
    refused "$name" "$output .* would overwrite a file of $kept: give another $output$" \
        "$train" --data images --model mlp --quiet --overwrite --steps 1 "$@"
}
mkdir folder
ln -s ../c folder/link
ln c hard
ln -s train-labels-idx1-ubyte images/labels
protected "a log does not replace the parameters that a run loads" --load --log --load c --log c
protected "nor by another way to them" --load --log --load c --log folder/../c
protected "nor by a link to them" --load --trace --load c --trace folder/link
protected "nor by a hard link" --load --log --load hard --log c
run_alone "$train" "$@" --steps 60 --sync daso --log replay
protected "a log does not replace the one that it repeats" --replay --log --sync daso --replay replay --log ./replay
protected "a trace does not replace data" --data --trace --trace images/train-labels-idx1-ubyte
protected "nor does a checkpoint" --data --checkpoint --checkpoint images/labels
protected "a log does not replace a saved state" --resume --log \
    --checkpoint d --resume c --log ./c.step-000000000003
protected "nor does a trace replace the checkpoint that a run goes on with" --resume --trace \
    --checkpoint d --resume c --trace folder/link
cp c loaded
run_alone "$train" "$@" --steps 1 --load loaded --checkpoint loaded --overwrite
[ "$status" = 0 ] && ! cmp -s c loaded
result $? "a checkpoint may replace the one that the run loaded"

refused "a log and a trace are two files" 'two outputs would go to folder/link: give another --trace$' \
    "$train" "$@" --overwrite --steps 1 --log c --trace folder/link
ln -s missing dangling
refused "also where neither is there" 'two outputs would go to dangling: give another --trace$' \
    "$train" "$@" --overwrite --steps 1 --log missing --trace dangling

print_plan
