#!/bin/sh
# SPDX-License-Identifier: MIT
# Kills training runs at random points, resumes them until they are done, and compares the parameters with those of a
# run that nobody killed. Prints the results as TAP.
# usage: check_resume.sh, in the build tree; uses MPICC, MPIRUN, MPIRUN_FLAGS, ISO_TEST_SEED, the seed of the random
#        points, and ISO_TEST_KILLS, the number of kills of each run
set -u

root=$(cd "$(dirname "$0")/.." && pwd) || exit 1
# shellcheck source=tests/program_tests.sh
. "$root/tests/program_tests.sh"
. "$root/tests/idx_files.sh"
need_launcher
enter_work
shown=output
data_set images 400 40 8
KILLS=${ISO_TEST_KILLS:-5} # of each study; of the presets, which share their code, 1
seed=${ISO_TEST_SEED:-$(od -An -N4 -tu4 /dev/urandom | tr -d ' ')}
points=0

echo "1..43"
echo "# ISO_TEST_SEED=$seed"

# ---- Helpers ----

# Starts a run in the background: its launcher is $job, and each rank leaves a file pid.NUMBER.
data=images
start() { # ranks, arguments...
    rm -f pid.*
    start_ranks=$1
    shift
    # shellcheck disable=SC2086,SC2016  # flags are several words; $$ belongs to the inner shell
    timeout -k 5 60 "$launcher" $flags -n "$start_ranks" sh -c 'echo $$ >pid.$$; exec "$@"' sh \
        "$train" --data "$data" --quiet "$@" >output 2>&1 </dev/null &
    job=$!
}
finish() {
    status=0
    wait "$job" || status=$?
}
kill_ranks() {
    for file in pid.*; do
        [ -f "$file" ] && kill -9 "${file#pid.}" 2>/dev/null
    done
}
# The parameters at the end, and what the run says of itself.
outcome() { # log
    for key in param_hash train_loss test_loss test_accuracy noise_scale loss_scale skipped_steps; do
        summary_field $key "$1"
    done
}
# Number $1 of the random numbers of the seed, between 0 and $2.
random() {
    awk -v seed="$seed" -v n="$1" -v most="$2" \
        'BEGIN { srand(seed); for (i = 0; i < n; i++) x = rand(); printf "%.3f\n", x * most }'
}
milliseconds() {
    echo $(($(date +%s%N) / 1000000))
}

# Waits until a command of the shell is true, or the run that was started ends.
wait_until() { # command...
    waited=0
    until "$@" || ! kill -0 "$job" 2>/dev/null || [ $waited -ge 1500 ]; do
        sleep 0.02
        waited=$((waited + 1))
    done
}
newest() { # the shared file of the newest set
    find . -name 'state.step-????????????' | sort | tail -n 1
}
saved_since() { # the newest set before
    [ "$(newest)" != "$1" ]
}

# Lets a run train until a random point, or until its end. Every other time that point lies behind
# its first save, so that the run moves on.
live_and_die() { # log, longest life in seconds, ranks, arguments...
    points=$((points + 1))
    log=$1
    life=$(random $points "$2")
    die_ranks=$3
    shift 3
    before=$(newest)
    start "$die_ranks" "$@" --log "$log"
    wait_until test -e "$log"
    [ $((points % 2)) = 1 ] && wait_until saved_since "$before"
    sleep "$life"
    kill_ranks
    finish
}

resumes() { cat log.* | grep -c '"event":"resume"'; }
# There is a state to go on from, or one was gone on from.
has_saved() { [ -n "$(newest)" ] || [ "$(resumes)" -gt 0 ]; }

# A run that is left alone, then one with the same arguments that is not.
study() { # name, ranks, arguments...
    name=$1
    ranks=$2
    shift 2
    rm -f state* log*
    set -- "$@" --checkpoint state --checkpoint-every 7
    start "$ranks" "$@" --log log.whole
    wait_until test -e log.whole
    began=$(milliseconds)
    finish
    longest=$(awk -v t=$(($(milliseconds) - began)) 'BEGIN { print t / 5000 }')
    expected=$(outcome log.whole)
    rm -f state*
    good=$status
    kills=0
    lives=0
    while [ "$good" = 0 ] && { [ $kills -lt $KILLS ] || ! has_saved; } && [ $lives -lt $((4 * KILLS)) ]; do
        lives=$((lives + 1))
        # shellcheck disable=SC2046  # none or two words
        live_and_die "log.$lives" "$longest" "$ranks" "$@" $([ -n "$(newest)" ] && echo --resume state)
        grep '^train: ' output | grep -qv 'warning: took over\|stopped by SIG' && good=1 # it failed by itself
        [ $status != 0 ] && kills=$((kills + 1))
        [ $status != 0 ] && continue
        # It was done before it could be killed, or before it began: once more from the beginning.
        [ -e "log.$lives" ] || cp "log.$((lives - 1))" "log.$lives"
        [ "$expected" = "$(outcome "log.$lives")" ] || good=1
        rm -f state*
    done
    # shellcheck disable=SC2046
    start "$ranks" "$@" --log log.last $([ -n "$(newest)" ] && echo --resume state)
    finish
    # A run that was killed between its end and its exit has nothing left to do.
    [ -e log.last ] || cp "log.$lives" log.last
    [ $status = 0 ] && [ $kills -ge $KILLS ] && [ "$(resumes)" -gt 0 ] && [ -n "$expected" ] || good=1
    [ "$expected" = "$(outcome log.last)" ] || good=1
    echo "# $name: $lives lives of at most $longest s, $(resumes) resumed"
    result "$good" "$name: killed $kills times, a run ends with the same parameters and figures"
}

refused() { # what differs, pattern of the sentence, ranks, arguments...
    name=$1
    sentence=$2
    shift 2
    start "$@"
    finish
    good=0
    has_failed && one_sentence train ".*$sentence" output || good=1
    result $good "refuses to resume with $name"
}

# ---- Studies ----

study lazy 2 --sync lazy --dropout --batch 8 --epochs 5 --shift 2 --flip 0.3
study zero 3 --sync lazy --zero --model mlp --batch 6 --epochs 5 --clip-grad-norm 1 --grad-scaler --growth-interval 9
study powersgd 2 --sync lazy --wire powersgd --powersgd-rank 2 --powersgd-start 12 --model mlp --batch 8 --epochs 5
set -- --sync lazy --wire powersgd --model mlp --batch 8 --epochs 5 --powersgd-start 12
refused "another rank of PowerSGD" 'saved with --powersgd-rank 2, and this run has --powersgd-rank 3:' 2 "$@" \
    --powersgd-rank 3 --resume state
study int8 3 --sync lazy --wire int8 --model mlp --batch 6 --epochs 5
study accumulate 2 --sync lazy --accumulate 3 --noise-scale 2 --skip-loss 1.5 --skip-norm 1.5 --skip-window 6 \
    --model mlp --batch 5 --epochs 9
export ISO_RANKS_PER_NODE=2
study daso 3 --sync daso --wait 3 --model mlp --batch 6 --epochs 5
study daso-int8 3 --sync daso --wire int8 --wait 3 --model mlp --batch 6 --epochs 5
study daso-heat 3 --sync daso-heat --model mlp --batch 6 --epochs 6
set -- --model mlp --batch 6 --epochs 5
kills_of_each=$KILLS
KILLS=${ISO_TEST_KILLS:-1}
study postlocal 3 --sync postlocal --period 5 "$@"
study slowmo 3 --sync slowmo --period 6 --shift 2 "$@"
study diloco 3 --sync diloco --period 9 --wire int4 "$@"
study streaming-diloco 3 --sync streaming-diloco --period 9 --fragments 3 --wait 5 --wire int4 "$@"
study tournament 3 --sync tournament --period 6 --wait 2 --validation 0.25 "$@"
study overlap-localsgd 3 --sync overlap-localsgd --period 5 "$@"
study outer-adam 3 --sync localsgd --outer adam --period 6 --wire topk "$@"
KILLS=$kills_of_each
study localsgd 2 --sync localsgd --model mlp --batch 8 --epochs 5 --sampler overlap

# ---- What cannot go on ----

cp log.last log.before
start 2 --sync localsgd --model mlp --batch 8 --epochs 5 --sampler overlap --checkpoint state --checkpoint-every 7 \
    --resume state --log log.last
finish
[ $status = 0 ] && cmp -s log.last log.before
result $? "a run that is done is left as it is"
set -- --sync localsgd --model mlp --epochs 5 --resume state
refused "other shares of ranks" 'saved with --sampler overlap, and this run has --sampler pad:' 2 "$@" \
    --batch 8 --sampler pad
set -- "$@" --sampler overlap
refused "another number of ranks" 'saved by 2 ranks and this run has 3' 3 "$@" --batch 8
refused "another batch size" 'saved with --batch 8, and this run has --batch 9:' 2 "$@" --batch 9
refused "another order of samples" 'saved with --seed 1, and this run has --seed 2:' 2 "$@" --batch 8 --seed 2
refused "other images" 'saved with --shift 0, and this run has --shift 1:' 2 "$@" --batch 8 --shift 1
refused "several other options" \
    'state was saved with --sampler overlap, --model mlp, and this run has --sampler pad, --model cnn: resume with the' \
    2 --sync localsgd --epochs 5 --resume state --batch 8

# Options that change which tensors there are, or their shapes: the option is named, not the tensor.
rm -f state*
start 2 --model mlp --batch 8 --epochs 2 --checkpoint state --checkpoint-every 7
finish
data_set more 408 40 8
set -- --batch 8 --epochs 2 --resume state
refused "another network" 'saved with --model mlp, and this run has --model cnn: resume' 2 "$@"
set -- "$@" --model mlp
refused "another element type" 'saved with --dtype f32, and this run has --dtype f64: resume' 2 "$@" --dtype f64
refused "another optimizer" 'saved with --optimizer adam, and this run has --optimizer sgd: resume' 2 "$@" \
    --optimizer sgd
refused "another way to synchronise" 'saved with --sync lazy, and this run has --sync daso: resume' 2 "$@" --sync daso
data="more"
refused "other data" \
    'with --data of 400 images .* from images, and this run has --data of 408 images .* from more: resume' 2 "$@"
data=images
refused "another learning rate" 'saved with --lr 0.002, and this run has --lr 0.1: resume' 2 "$@" --lr 0.1
refused "another average" 'saved with --average post, and this run has --average sum: resume' 2 "$@" --average sum
refused "a wire with a memory" 'saved with --wire f32, and this run has --wire bf16-feedback: resume' 2 "$@" \
    --wire bf16-feedback

# Rounded gradients leave nothing behind that another wire would miss.
rm -f state.step-000000000050* # the end, so that a step is left
start 2 "$@" --log log.f32 --lr 0.002 --wire f32 --bucket-mb 0.25 --weight-decay 0 # defaults may be given
finish
same=$status
start 2 "$@" --wire bf16 --log log.bf16
finish
[ "$same$status" = 00 ] && grep -q '"event":"resume","step":49,"old_wire":"f32"' log.bf16 &&
    grep -q '"event":"resume","step":49}' log.f32 && [ "$(summary_field param_hash log.bf16)" != "$(summary_field param_hash log.f32)" ]
result $? "goes on with gradients that are rounded on the wire, and says so"

# Of nothing but damaged files the newest is named, and what can be done.
for file in state.step-????????????; do
    printf X | dd of="$file" bs=1 seek=100 conv=notrunc 2>/dev/null
done
newest=$(newest)
refused "damaged files alone" "\\(the newest: ${newest#./} is damaged.*\\): start a new run under another path" 2 "$@"

# ---- Another number of ranks ----

# Whether losses of two runs are the same but for the order of additions, of which those of 68 steps are small.
same_losses() { # log, log
    for key in train_loss test_loss; do
        awk -v a="$(summary_field $key "$1")" -v b="$(summary_field $key "$2")" \
            'BEGIN { exit !(a > 0 && (a - b) ^ 2 < (1e-6 * a) ^ 2) }' || return 1
    done
}

rm -f state* log*
data=more # 34 batches of 12: nothing is repeated at the end of an epoch
options="--model mlp --epochs 2 --checkpoint state --checkpoint-every 7"
# shellcheck disable=SC2086
start 2 $options --batch 6 --log log.2
finish
mkdir before
mv state.step-000000000063* before
go_on() { # name, ranks, arguments...
    name=$1
    shift
    rm -f state*
    cp before/* .
    # shellcheck disable=SC2086
    start "$@" $options --resume state --log "log.$name"
    finish
    [ "$status" = 0 ] && same_losses log.2 "log.$name" &&
        grep -q '"event":"resume","step":63,"old_ranks":2,"old_batch":6,"old_accumulate":1}' "log.$name"
}
good=0
go_on 3 3 --batch 4 || good=1
go_on 4 4 --batch 3 || good=1
go_on 1 1 --batch 6 --accumulate 2 || good=1
# shellcheck disable=SC2086
start 3 $options --batch 4 --log log.whole --overwrite
finish
same_losses log.2 log.whole && same_losses log.whole log.3 || good=1
result $good "goes on with 3, 4 and 1 ranks instead of 2 as if nothing had happened"

rm -f state*
cp before/* .
# shellcheck disable=SC2086
refused "another global batch" 'of 12, and this run has 3 ranks and one of 18: give --batch 4 to keep it' \
    3 $options --batch 6 --resume state
# shellcheck disable=SC2086
refused "a global batch that ranks cannot share" 'of 12, and this run has 5 ranks .*: use a number of ranks that divides' \
    5 $options --batch 2 --resume state

# What was left out by rounding stays behind: the rest of the run goes on with a new error.
rm -f state* log*
# shellcheck disable=SC2086
start 3 $options --batch 4 --wire int8 --log log.3
finish
rm -f state.step-000000000068*
# shellcheck disable=SC2086
start 2 $options --batch 6 --wire int8 --resume state --log log.2 --sync blocking
finish
has_failed && one_sentence train '.*with --sync lazy, and this run has --sync blocking' output
good=$?
# shellcheck disable=SC2086
start 2 $options --batch 6 --wire int8 --resume state --log log.2
finish
[ "$status" = 0 ] && grep -q '"event":"resume","step":63,"old_ranks":3,' log.2 || good=1
result $good "goes on where wires have a memory"

# Replicas go on as their mean, with an exchange under way or not.
good=0
export ISO_RANKS_PER_NODE=1
for sync in 'daso --wire int8 --wait 3' 'streaming-diloco --period 5 --wait 2'; do
    rm -f state* log*
    # shellcheck disable=SC2086
    start 3 $options --batch 4 --sync $sync --log log.3
    finish
    rm -f state.step-000000000068*
    # shellcheck disable=SC2086
    start 2 $options --batch 6 --sync $sync --resume state --log log.2
    finish
    [ "$status" = 0 ] && grep -q '"event":"resume","step":63,"old_ranks":3,' log.2 &&
        awk -v a="$(summary_field test_loss log.3)" -v b="$(summary_field test_loss log.2)" \
            'BEGIN { exit !(a > 0 && (a - b) ^ 2 < (0.05 * a) ^ 2) }' || good=1
done
unset ISO_RANKS_PER_NODE
result $good "replicas go on with another number of ranks"

# From 3 ranks on one node to two nodes.
good=0
rm -f state* log*
# shellcheck disable=SC2086
start 3 $options --batch 4 --sync daso --log log.3
finish
rm -f state.step-000000000068*
export ISO_RANKS_PER_NODE=2
# shellcheck disable=SC2086
start 3 $options --batch 4 --sync daso --resume state --log log.2
finish
[ "$status" = 0 ] && grep -q '"event":"resume","step":63,"other_nodes":1}' log.2 &&
    awk -v a="$(summary_field test_loss log.3)" -v b="$(summary_field test_loss log.2)" \
        'BEGIN { exit !(a > 0 && (a - b) ^ 2 < (0.05 * a) ^ 2) }' || good=1
unset ISO_RANKS_PER_NODE
result $good "replicas go on with the ranks distributed over nodes in another way"

# Killed in the first epoch, or after it had written the best checkpoint and no state: the same command goes on.
rm -f state* log*
set -- --model mlp --batch 20 --epochs 4 --validation 0.2 --checkpoint state --resume auto --checkpoint-best best
start 2 "$@" --log log
wait_until test -e state.step-000000000000
kill_ranks
finish
good=0
[ -e state.step-000000000000 ] || good=1
find . -name 'state.step-*' ! -name 'state.step-000000000000*' -exec rm -f {} +
rm -f state
[ -e best ] || echo "not read" >best
start 2 "$@" --log log
finish
[ "$status" = 0 ] && [ -n "$(summary_field param_hash log)" ] && grep -q '"event":"resume","step":0}' log || good=1
result $good "a run that was killed before its first state can be started again, also with --checkpoint-best"

# ---- The log ----

# A state goes with a log that has everything up to then: a loss of power must not take that away.
${MPICC:-mpicc} -shared -fPIC -o note.so "$root/tests/note_files.c" || exit 1
rm -f state*
run_alone env LD_PRELOAD="$work/note.so" NOTE_FILES="$work/notes" "$train" --data images --quiet --model mlp --batch 8 \
    --epochs 2 --checkpoint state --checkpoint-every 20 --log log.synced --tensorboard board
[ "$status" = 0 ] && awk -v folder="$(cd "$work" && pwd -P)" '
    /^fsync .*\/log.synced$/ { log_synced = 1 }
    /^fsync .*\/board\/events/ { board_synced = 1 }
    /^fsync / && substr($0, 7) == folder { placed = 1 }
    /^rename .*state\.step-[0-9]*$/ { sets++; good += log_synced && board_synced && placed; log_synced = board_synced = 0 }
    END { exit !(sets > 2 && good == sets) }' notes
result $? "the log is on disk before a state is saved that goes with it"

# A gap in a log is better than work that is lost.
rm -f state*
run_alone "$train" --data images --quiet --model mlp --batch 8 --epochs 2 --checkpoint state --checkpoint-every 20 \
    --log /dev/full --overwrite
[ "$status" != 0 ] && [ -n "$(newest)" ] &&
    grep -q 'cannot write log /dev/full: No space left on device: a state is saved without it' stderr
result $? "a log that cannot be written keeps no state from being saved"
