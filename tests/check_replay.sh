#!/bin/sh
# SPDX-License-Identifier: MIT
# Repeats runs whose period and wait follow measured times, from their logs (--replay): the same bits, and the same
# changes. Prints the results as TAP.
# usage: check_replay.sh, in the build tree; uses MPIRUN and MPIRUN_FLAGS
set -u

root=$(cd "$(dirname "$0")/.." && pwd) || exit 1
# shellcheck source=tests/program_tests.sh
. "$root/tests/program_tests.sh"
need_launcher
export ISO_DIGITS=6000 # what all processes would generate anew
enter_work

set -- --model mlp --steps 160 --batch 8 --test-limit 50 --quiet --overwrite
changes() { grep '"event":"change"' "$1" >"$1.changes"; }
repeats() { # name, ranks, options of the mode
    name=$1 ranks=$2
    shift 2
    run "$ranks" "$train" "$@" --log first
    expected=$(summary_field param_hash first)
    run "$ranks" "$train" "$@" --log second --replay first
    changes first
    changes second
    [ -n "$expected" ] && [ "$(summary_field param_hash second)" = "$expected" ] && [ -s first.changes ] &&
        cmp first.changes second.changes >difference
    result $? "$name repeats its bits and its changes on $ranks ranks"
}
mode="--sync daso --unit rank --policy adaptive --max-divergence 0.01"
# shellcheck disable=SC2086
repeats "an adaptive daso" 3 "$@" $mode
cp first adaptive
# shellcheck disable=SC2086
repeats "an adaptive daso without a warm-up" 2 "$@" $mode --warmup 0
repeats "a measured wait" 2 "$@" --sync daso --unit rank
repeats "an adaptive slowmo" 2 "$@" --sync slowmo --policy adaptive --max-divergence 0.01
repeats "async, with evaluations and checkpoints," 3 "$@" --sync async --eval-every 60 --checkpoint c --checkpoint-every 50
repeats "a server, with evaluations and checkpoints," 3 "$@" --sync server --period 2 --eval-every 60 --checkpoint s \
    --checkpoint-every 50
repeats "a rank that only serves, with evaluations and checkpoints," 3 "$@" --sync server --servers 1 --period 2 \
    --eval-every 60 --checkpoint o --checkpoint-every 50
cp first served
awk '!/"event":"apart"/ { print } /"event":"change"/ && ++n == 3 { exit }' first >cut

# A change that nothing measured would cause, in the step of the second send: it comes from the log alone.
sed '/"event":"change"/!d; /"cause":"sync"/d; s/"batches_to_wait":[0-9]*/"batches_to_wait":2/' adaptive >other
# shellcheck disable=SC2086
run 3 "$train" "$@" $mode --log second --replay other
at=$(sed -n 's/.*"event":"sync","step":\([0-9]*\),"age":\([0-9]*\).*/\1 \2/p' second | awk 'NR == 2 { print $1 - $2 }')
printf '{"event":"change","step":%s,"cause":"sync","global_skip":5,"local_skip":1,"batches_to_wait":2}\n' "$at" >>other
# shellcheck disable=SC2086
run 3 "$train" "$@" $mode --log third --replay other
changes third
grep '"event":"change"' other >expected
[ "$status" = 0 ] && [ "$(wc -l <expected)" = 2 ] && grep '"cause":"sync"' third.changes >decided &&
    grep '"cause":"sync"' expected | cmp - decided >difference
result $? "the changes of the log are made, whatever is measured"

# A run that was resumed after step 40: what it had changed after that the first time does not count.
{
    sed 's/"batches_to_wait":[0-9]*,*/"batches_to_wait":1/' adaptive | grep '"event":"change"' |
        awk -F'"step":' '{ split($2, step, ","); if (step[1] > 40) print }'
    echo '{"event":"resume","step":40}'
} >later
awk -F'"step":' '/"event":"change"/ { split($2, step, ","); if (step[1] <= 40) print }' adaptive >early
awk -F'"step":' '/"event":"change"/ { split($2, step, ","); if (step[1] > 40) print }' adaptive >late
cat early later late >resumed
# shellcheck disable=SC2086
run 3 "$train" "$@" $mode --log fourth --replay resumed
[ "$status" = 0 ] && [ -n "$(summary_field param_hash fourth)" ] &&
    [ "$(summary_field param_hash fourth)" = "$(summary_field param_hash adaptive)" ]
result $? "changes that a resumed run has made anew replace the earlier ones"

# shellcheck disable=SC2086
run 3 "$train" "$@" $mode --seed 2 --replay adaptive
grep -q 'warning: the log adaptive is of a run with --seed 1: --replay repeats its changes, but not its bits' stderr &&
    [ "$(grep -c warning: stderr)" = 1 ]
result $? "another seed is told"

refused() { # what is wrong, pattern of the sentence, options...
    name=$1 sentence=$2
    shift 2
    # shellcheck disable=SC2086
    run 2 "$train" --model mlp --steps 10 --quiet "$@"
    has_failed && one_sentence train "$sentence" stderr
    result $? "refused with one sentence: $name"
}
echo '{"event":"change","step":3,"cause":"sync","global_skip":0,"local_skip":1,"batches_to_wait":1}' >damaged
echo '{"event":"epoch"}' >without
refused "no log" 'cannot read the log nowhere: No such file' --sync daso --replay nowhere
refused "a folder" 'cannot read the log \.: Is a directory' --sync daso --replay .
refused "a log without changes" 'the log without has no change of period or wait' --sync daso --replay without
refused "a damaged line" 'the log damaged is damaged in line 1' --sync daso --replay damaged
refused "a log that ends among changes of ranks" 'the log cut ends among the changes of ranks, at step' --sync server \
    --period 2 --replay cut
refused "a log of more ranks" 'the log served is of a run with ranks 3, and this one has 2: --replay' --sync server \
    --period 2 --replay served
run 3 "$train" --model mlp --steps 160 --batch 8 --quiet --sync server --servers 1 --period 2 --eval-every 50 --replay served
has_failed && one_sentence train 'the log served is of a run with --eval-every 60, and this one has 50: --replay' stderr
result $? "refused with one sentence: a log of ranks that met at other steps"
run 3 "$train" --model mlp --steps 160 --batch 8 --quiet --sync server --period 2 --eval-every 60 --replay served
has_failed && one_sentence train 'the log served is of a run with --servers 1, and this one has 0: --replay' stderr
result $? "refused with one sentence: a log of other ranks that only serve"
refused "a log of another mode" 'the log adaptive is of a run on 3 ranks with --sync daso: --replay' --sync localsgd \
    --replay adaptive
refused "a mode without a period" '--replay needs a --sync with a setting "period" or "sync-interval-ms": --sync lazy has none' --replay adaptive

print_plan
