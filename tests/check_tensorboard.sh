#!/bin/sh
# SPDX-License-Identifier: MIT
# Compares event files for TensorBoard with the logs of the same runs, and prints the results as TAP.
# usage: check_tensorboard.sh, in the build tree; uses MPIRUN, MPIRUN_FLAGS and ISO_TEST_PYTHON (a Python that has the
# module tensorboard, if one should ask TensorBoard's own reader, too)
set -u

root=$(cd "$(dirname "$0")/.." && pwd) || exit 1
# shellcheck source=tests/program_tests.sh
. "$root/tests/program_tests.sh"
need_launcher
python=${ISO_TEST_PYTHON:-python3}
if ! "$python" -c 'import json, struct' 2>/dev/null; then
    echo "1..0 # SKIP python3, which reads the event files, is not here"
    exit 0
fi
sweep=$programs/sweep
enter_work
shown="stdout stderr compared"

# Prints "files values restarts" to compared.
equal() { # folder, log
    "$python" "$root/tests/event_files.py" "$1" "$2" >compared 2>&1
}
counts() { sed -n 's/^\([0-9]\)/\1/p' compared; }
refused() { # what is wrong, pattern of the sentence, arguments...
    name=$1 sentence=$2
    shift 2
    run 2 "$train" --model mlp --steps 2 --quiet "$@"
    has_failed && one_sentence train "$sentence" stderr && ! has_crashed stderr
    result $? "refused with one sentence: $name"
}

# ---- A run ----

short="--model mlp --steps 24 --eval-every 8 --quiet"
# shellcheck disable=SC2086  # options are several words
run 3 "$train" $short --sync daso --unit rank --period 4 --warmup-steps 2 --log log --tensorboard new/board
good=$status
equal new/board log || good=1
for key in train_loss test_loss test_accuracy lr step_ms wait_ms_per_step bytes_sent; do
    grep -q '"event":"eval",.*"'$key'":[0-9]' log || good=1
done
for key in divergence global_skip batches_to_wait; do
    grep -q '"event":"sync",.*"'$key'":[0-9]' log || good=1
done
result $good "event files have every number of the log, and no other"

# Of the epochs and evaluations of a run, times make up the whole.
awk -F'[:,]' '/"event":"eval"/ {
        for (i = 1; i < NF; i++) { if ($i == "\"step\"") step = $(i+1); if ($i == "\"step_ms\"") ms = $(i+1)
            if ($i == "\"seconds\"") seconds = $(i+1) }
        sum += (step - before) * ms; before = step }
    END { exit !(step == 24 && sum > 999 * seconds && sum < 1001 * seconds) }' log
result $? "the times of a step between evaluations add up to the time of the run"

refused "event files of another run" 'the folder new/board has the event files of another run: give another' \
    --tensorboard new/board
refused "a folder that cannot be made" 'cannot make the folder log/board: Not a directory' --tensorboard log/board
refused "a log that cannot be made" 'cannot create log nowhere/log' --log nowhere/log --tensorboard left
[ -z "$(ls left)" ]
result $? "a run that is refused leaves no event file"

run 2 "$train" --model mlp --steps 2 --quiet --tensorboard new/board --overwrite --log log2
good=$status
equal new/board log2 && [ "$(counts | cut -d' ' -f1)" = 1 ] || good=1
result $good "--overwrite replaces event files"

# A limit of the size of files takes the place of a full disk. The launcher and its files know nothing of it.
limited='trap "" XFSZ; [ "${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-0}}" != 0 ] || ulimit -f 2; exec "$@"'
run 2 sh -c "$limited" sh "$train" --model mlp --steps 2 --quiet --tensorboard full
has_failed && one_sentence train 'cannot write the event file full/events.out.tfevents.*: File too large' stderr
result $? "a full disk is told with one sentence"

# ---- A run that is resumed ----

# What the first one saved last is gone, and with it what it did after step 32.
state="--checkpoint state --checkpoint-every 16"
# shellcheck disable=SC2086
run 2 "$train" --model mlp --steps 40 --eval-every 8 --noise-scale 5 --quiet $state --log log3 --tensorboard board3
good=$status
rm -f state.step-*40*
# shellcheck disable=SC2086
run 2 "$train" --model mlp --steps 40 --eval-every 8 --noise-scale 5 --quiet $state --resume state --log log3 --tensorboard board3
[ "$status" = 0 ] || good=1
equal board3 log3 || good=1
[ "$(counts | cut -d' ' -f1,3)" = "2 1" ] || good=1
result $good "a resumed run goes on in a second file, and takes back what was lost"

# The end of the run, which is another one, is not where the first part is cut off.
# shellcheck disable=SC2086
run 2 "$train" --model mlp --steps 40 --eval-every 8 --quiet $state --overwrite --log log5 --tensorboard board5
good=$status
rm -f state.step-*40*
# shellcheck disable=SC2086
run 2 "$train" --model mlp --steps 56 --eval-every 8 --quiet $state --resume state --extend --log log5 --tensorboard board5
[ "$status" = 0 ] || good=1
equal board5 log5 || good=1
[ "$(counts | cut -d' ' -f1,3)" = "2 1" ] || good=1
result $good "a run that is extended takes back what was lost"

# Of a run that was killed before it saved a state there are only event files.
run 2 "$train" --model mlp --steps 16 --eval-every 8 --quiet --tensorboard board6
good=$status
run 2 "$train" --model mlp --steps 24 --eval-every 8 --quiet --checkpoint anew --resume auto --log log6 --tensorboard board6
[ "$status" = 0 ] || good=1
equal board6 log6 || good=1
[ "$(counts | cut -d' ' -f1,3)" = "2 1" ] || good=1
result $good "a run that begins anew takes all back, also without a log of the first part"

# ---- A sweep ----

run 2 "$sweep" --out study --tensorboard boards --model mlp --steps 8 --eval-every 4 --quiet --seeds 1,2 -- \
    "lazy: --sync lazy" "daso: --sync daso --unit rank --period 2"
good=$status
for one in lazy-seed1 daso-seed1 lazy-seed2 daso-seed2; do
    equal boards/$one study/$one.jsonl || good=1
done
[ "$(ls boards | wc -l)" = 4 ] || good=1
result $good "each run of a sweep has a folder of event files with the numbers of its log"

print_plan
