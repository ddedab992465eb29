#!/bin/sh
# SPDX-License-Identifier: MIT
# Extends finished training runs (--resume with --extend) and compares them with runs that were longer from the
# beginning. Prints the results as TAP.
# usage: check_extend.sh, in the build tree; uses MPIRUN and MPIRUN_FLAGS
set -u

root=$(cd "$(dirname "$0")/.." && pwd) || exit 1
# shellcheck source=tests/program_tests.sh
. "$root/tests/program_tests.sh"
. "$root/tests/idx_files.sh"
need_launcher
enter_work
data_set images 400 40 8
export ISO_RANKS_PER_NODE=1

options="--data images --model mlp --quiet --checkpoint state --resume auto"
schedule=constant
train_on() { # log, ranks, arguments...
    log=$1
    on_ranks=$2
    shift 2
    # shellcheck disable=SC2086
    run "$on_ranks" "$train" $options --schedule "$schedule" --log "$log" "$@"
}
outcome() { # log: what its last line, a summary, says
    for key in param_hash train_loss test_loss test_accuracy; do
        field $key "$1"
    done
}
# A run that is extended once it is finished, and the same run with the later end from the beginning. The step at which
# the first one ended is named in the log.
extends() { # name, ranks, first end, its step, second end, arguments...
    name=$1 on=$2 first=$3 step=$4 second=$5
    shift 5
    good=0
    rm -f state* log*
    # shellcheck disable=SC2086
    train_on log.whole "$on" $second "$@"
    rm -f state*
    # shellcheck disable=SC2086
    train_on log.parts "$on" $first "$@" && train_on log.parts "$on" $second "$@" --extend
    [ "$status" = 0 ] && [ -n "$(field param_hash log.whole)" ] || good=1
    [ "$(outcome log.whole)" = "$(outcome log.parts)" ] || good=1
    grep -q '"event":"resume","step":'"$step"',"extended":"'"$first"'' log.parts || good=1
    result $good "$name: a finished run that is extended ends as one that was longer from the beginning"
}

extends lazy 2 '--epochs 2' 50 '--epochs 4' --batch 8
extends "within an epoch" 3 '--steps 10' 10 '--steps 40' --batch 6 --accumulate 2 --zero --sync lazy
rm -f state* log
train_on log 2 --batch 8 --steps 25 --optimizer adam --lr 1e6
train_on log 2 --batch 8 --steps 27 --optimizer adam --lr 1e6 --extend
[ "$status" = 0 ] && [ "$(field train_loss_steps log)" = 2 ] && grep -q 'diverged: the loss of its last 2 steps is ' stderr
result $? "the warning of a run that diverged names the steps that its loss is the mean of"
# Whole periods: where the run ends, replicas have just been averaged.
extends localsgd 2 '--epochs 2' 50 '--epochs 4' --batch 8 --sync localsgd --period 5
extends diloco 2 '--epochs 2' 50 '--epochs 4' --batch 8 --sync diloco --period 5
# ---- Other learning rates, and what is refused -------------------------------------------------------------

# A finished run of 50 steps in state, and its options.
first="--batch 8"
rm -f state* log*
# shellcheck disable=SC2086
train_on log 2 --epochs 2 $first
mkdir before
mv state* before
again() { # arguments...
    rm -f state* log
    cp before/* .
    # shellcheck disable=SC2086
    train_on log 2 $first "$@"
}
again --epochs 3 --lr 0.0001 --extend
[ "$status" = 0 ] && grep -q '"event":"resume","step":50,"extended":"--epochs 2, --lr 0.002","steps":75}' log &&
    grep '"event":"epoch"' log | tail -n 1 | grep -q '"lr":0.0001'
result $? "takes another learning rate, and logs the one before"
schedule=linear
again --epochs 3 --extend
schedule=constant
[ "$status" = 0 ] && grep -q '"extended":"--epochs 2, --schedule constant"' log
result $? "takes another schedule"
again --epochs 2 --extend
good=0
[ "$status" = 0 ] && ! [ -s log ] && [ "$(ls -d state*)" = "$(ls before)" ] || good=1
for file in before/*; do
    cmp -s "$file" "${file#before/}" || good=1
done
result $good "a finished run that is told no later end is left as it is"

schedule=constant
rm -f state* log
run 2 "$train" --data images --model mlp --quiet $first --epochs 1 --checkpoint state --checkpoint-every 5
run 2 "$train" --data images --model mlp --quiet $first --epochs 3 --checkpoint state --resume ./state --extend
[ "$status" = 0 ] && [ -e state.step-000000000075 ]
result $? "a run that resumes its own checkpoint by another spelling saves states"

refused() { # what, pattern of the sentence, arguments...
    name=$1 sentence=$2
    shift 2
    again "$@"
    has_failed && one_sentence train ".*$sentence" stderr
    result $? "refuses $name"
}
refused "a later end without --extend, which the sentence names" \
    'saved with --epochs 2, and this run has --epochs 3: resume .*, add --extend to go on with these, or begin' --epochs 3
refused "an earlier end" 'has made 50 steps, and with these options it ends after 25: --extend needs more' --epochs 1 --extend
refused "other data in an extended run" 'saved with --shift 0, and this run has --shift 1: resume with the options it was saved with, or begin' \
    --epochs 3 --shift 1 --extend
refused "daso-heat, which plans the whole run" 'daso-heat, which plans' --epochs 3 --sync daso-heat --extend
# The newest set loses the file of a rank; the one before it is from before the run was extended, and finished.
rm -f log
cp before/* .
# shellcheck disable=SC2086
train_on log 2 $first --epochs 3 --lr 0.0001 --extend --checkpoint-every 20
newest=$(find . -name 'state.step-????????????' | sort | tail -n 1)
rm -f state.step-0000000000[67]0* "$newest.rank-00001"
cp before/state.step-* .
cp state kept
# shellcheck disable=SC2086
train_on log 2 $first --epochs 3 --lr 0.0001
[ "$newest" = ./state.step-000000000075 ] && has_failed &&
    one_sentence train '.*of step 50 was saved with other options or ranks: remove the files state\.step-\* of later' stderr &&
    cmp -s state kept
result $? "does not take a finished run from before it was extended for the end of this one"
run 2 "$train" --data images --extend
has_failed && one_sentence train '--extend needs --resume' stderr
result $? "refuses to extend without a run"
print_plan
