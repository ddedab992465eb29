#!/bin/sh
# SPDX-License-Identifier: MIT
# Sends signals to training runs as a batch system does before it takes the nodes away: the runs save their state after
# a step, end with exit code 75, and when resumed end with the parameters of a run that nobody disturbed. Prints the
# results as TAP.
# usage: check_preempt.sh, in the build tree; uses MPIRUN and MPIRUN_FLAGS
set -u

root=$(cd "$(dirname "$0")/.." && pwd) || exit 1
# shellcheck source=tests/program_tests.sh
. "$root/tests/program_tests.sh"
. "$root/tests/idx_files.sh"
need_launcher
enter_work
shown=output
data_set images 400 40 8
MOST=10000 # ms from a signal to the end of the run

# ---- Helpers ----

# In the background; leaves the processes of the launcher and of each rank in files.
start() { # ranks, program, arguments...
    rm -f pid.*
    start_ranks=$1
    shift
    # shellcheck disable=SC2086,SC2016  # flags are several words; $$ and $PPID belong to the inner shell
    timeout -k 5 60 "$launcher" $flags -n "$start_ranks" \
        sh -c 'echo $PPID >pid.launcher; echo $$ >"pid.${OMPI_COMM_WORLD_RANK:-$PMI_RANK}"; exec "$@"' sh "$@" \
        >output 2>&1 </dev/null &
    job=$!
}
train_on() { # ranks, arguments...
    train_ranks=$1
    shift
    start "$train_ranks" "$train" --data images --quiet "$@"
}
finish() {
    status=0
    wait "$job" || status=$?
}
milliseconds() { echo $(($(date +%s%N) / 1000000)); }
wait_until() { # command...
    waited=0
    until "$@" 2>/dev/null || ! kill -0 "$job" 2>/dev/null || [ $waited -ge 1500 ]; do
        sleep 0.02
        waited=$((waited + 1))
    done
}
# Sends a signal to the launcher or a rank as soon as it can be sent, and waits for the end.
interrupt() { # signal, "launcher" or rank, what is awaited before it, as a command...
    signal=$1
    target=$2
    shift 2
    wait_until "$@"
    began=$(milliseconds)
    kill "-$signal" "$(cat "pid.$target")"
    finish
    took=$(($(milliseconds) - began))
}
newest() { find . -name "$1.step-????????????" | sort | tail -n 1; }
is_saved() { [ -n "$(newest "$1")" ]; }
has_grown() { [ "$(newest state)" != "$before" ]; }
outcome() { # log
    for key in param_hash train_loss test_loss test_accuracy; do
        summary_field $key "$1"
    done
}
# The sentence of a run that was stopped, whose set is there.
tells_newest() { # signal or who got it, checkpoint
    sentence="^train: stopped by $1: the newest checkpoint is $2.step-"
    [ "$(grep -c "$sentence.*: continue with the same options and --resume $2\$" output)" = 1 ] &&
        [ "./$(sed -n "s/$sentence\\([0-9]*\\):.*/$2.step-\\1/p" output)" = "$(newest "$2")" ] && [ ! -e "$2.lock" ]
}

# A machine may be so fast that a run ends before the signal comes: then a longer one is tried. Returns whether it is.
longer() {
    epochs=$((4 * epochs))
    [ $epochs -lt 20000 ]
}

# Stopped twice on its way by the same signal: first as early as a signal is taken, then in the middle.
study() { # name, ranks, signal, its target, epochs, arguments...
    name=$1
    ranks=$2
    signal=$3
    target=$4
    epochs=$5
    shift 5
    while ! stop_twice "$@" && longer; do :; done
    [ $stops = 2 ] && [ "$longest" -le $MOST ] || good=1
    echo "# $name: $epochs epochs, at most $longest ms from the signal to the end"
    result "$good" "$name: stopped $stops times by SIG$signal, a run ends with the same parameters and figures"
}
# Returns 1 if the run was done before a signal came.
stop_twice() { # arguments...
    rm -f state* log*
    set -- "$@" --epochs "$epochs"
    train_on "$ranks" "$@" --log log.whole
    finish
    expected=$(outcome log.whole)
    good=$status
    [ -n "$expected" ] || good=1
    longest=0
    stops=0
    set -- "$@" --checkpoint state --log log
    while [ "$good" = 0 ] && [ $stops -lt 2 ]; do
        before=$(newest state)
        # shellcheck disable=SC2046  # none or two words
        train_on "$ranks" "$@" $([ -z "$before" ] || echo --resume state)
        if [ $stops = 0 ]; then
            interrupt "$signal" "$target" test -e state.lock
        else
            wait_until eval "grep -q '\"resume\"' log"
            interrupt "$signal" "$target" true
        fi
        [ "$status" = 0 ] && break # it was done before the signal came
        stops=$((stops + 1))
        [ "$took" -le "$longest" ] || longest=$took
        from="SIG$signal"
        [ "$target" = launcher ] || [ "$target" = 0 ] || from="a signal to another rank"
        [ "$status" = 75 ] && has_grown && tells_newest "$from" state || good=1
        tail -n 1 log | grep -q "{\"event\":\"stop\",\"step\":$(newest state | sed 's/.*step-0*//')}" || good=1
    done
    cp output "output.$name"
    [ "$good" = 0 ] && [ $stops -lt 2 ] && return 1
    if [ "$status" != 0 ]; then
        train_on "$ranks" "$@" --resume state
        finish
    fi
    [ "$status" = 0 ] && [ "$expected" = "$(outcome log)" ] || good=1
    return 0
}

# ---- Studies: what is under way when the signal comes is saved, too ----

study lazy 2 USR1 launcher 12 --sync lazy --model cnn --dropout --batch 8 --shift 2 --flip 0.3
study accumulate 3 TERM 1 40 --sync lazy --model mlp --batch 5 --accumulate 3
export ISO_RANKS_PER_NODE=2
study daso 3 USR2 launcher 20 --sync daso --model mlp --batch 6 --period 4 --wait 4 --warmup 0 --cooldown 0
unset ISO_RANKS_PER_NODE
study fragments 2 TERM 0 20 --sync streaming-diloco --model mlp --batch 8 --period 4 --wait 2

# ---- Without time, or without a place to save to ----

# Open MPI's launcher leaves ranks one second, and then ends them, in the middle of a save or not.
epochs=20
while :; do
    rm -f state* log*
    set -- --sync lazy --model mlp --batch 8 --epochs $epochs --checkpoint state --checkpoint-every 10
    train_on 2 "$@" --log log
    interrupt TERM launcher is_saved state
    grep -q '"event":"summary"' log && longer || break # mpirun reports the signal even so
done
good=0
has_failed && grep -q '^train: SIGTERM: if all ranks are alive, the run will be saved within about half a second; until then ' output || good=1
cut=$(newest state)
train_on 2 "$@" --log log --resume state --overwrite
finish
[ "$status" = 0 ] && grep -q '"event":"resume","step":'"$(echo "$cut" | sed 's/.*step-0*//')" log || good=1
mv log log.cut
rm -f state*
train_on 2 "$@" --log log
finish
[ "$status" = 0 ] && [ -n "$(outcome log)" ] && [ "$(outcome log)" = "$(outcome log.cut)" ] || good=1
result $good "after SIGTERM to the launcher the newest state is whole"

rm -f log*
train_on 2 --model mlp --epochs 100000 --log log
interrupt USR1 launcher test -e log
[ "$status" = 138 ] && grep -q '^train: stopped by SIGUSR1: nothing was saved: runs with --checkpoint can' output
result $? "a run without a checkpoint ends at once, and says so"

# The other rank does not answer any more.
rm -f state*
train_on 2 --model mlp --epochs 100000 --checkpoint state --checkpoint-every 1
wait_until is_saved state
kill -STOP "$(cat pid.1)"
kill -TERM "$(cat pid.0)"
sleep 0.3
kill -TERM "$(cat pid.0)" # as some launchers do
sleep 1.2
kill -0 "$(cat pid.0)"
alive=$?
interrupt TERM 0 true
kill -9 "$(cat pid.1)" 2>/dev/null
[ $alive = 0 ] && [ "$status" = 143 ] && [ "$took" -lt $MOST ] && [ "$(grep -c '^train: SIGTERM: ' output)" = 1 ]
result $? "SIGTERM repeated after a second ends a run that cannot stop"

# ---- One command line for all starts ----

epochs=20
while :; do
    rm -f state*
    echo '{"event":"epoch","epoch":1,"steps":25}' >log # of a run that was killed before it had saved anything
    set -- --sync lazy --model mlp --batch 8 --epochs $epochs --checkpoint state --log log --resume auto
    train_on 2 "$@"
    interrupt USR1 launcher grep -q '"event":"resume","step":0}' log
    [ "$status" = 0 ] && longer || break
done
[ "$status" = 75 ] && grep -q '^train: stopped by SIGUSR1: .*: continue with the same command$' output
good=$?
step=$(newest state | sed 's/.*step-0*//')
run 2 "$train" --data images "$@"
[ "$status" = 0 ] && grep -q "^continues after step $step," stdout || good=1
train_on 2 --sync lazy --model mlp --batch 8 --epochs $epochs --log log.whole
finish
[ "$status" = 0 ] && [ -n "$(outcome log)" ] && [ "$(outcome log.whole)" = "$(outcome log)" ] || good=1
result $good "--resume auto starts a run and goes on with it"

cp log log.before
run 2 "$train" --data images "$@"
[ "$status" = 0 ] && cmp -s log log.before && grep -q '^the training saved as state is complete' stdout
result $? "and leaves a run as it is that is complete"

refused() { # what, sentence, ranks, arguments...
    name=$1
    sentence=$2
    shift 2
    train_on "$@"
    finish
    has_failed && one_sentence train "$sentence" output && cmp -s log log.before
    result $? "it refuses $name"
}
refused "other options" 'state was saved with --seed 1, and this run has --seed 2: ' 2 "$@" --seed 2
refused "another global batch" 'state was saved by 2 ranks with .* of 16, and this run has 1 rank .*: give --batch 16' 1 "$@"
refused "a run without a checkpoint" '--resume auto needs --checkpoint$' 1 --resume auto
for file in state.step-????????????; do
    printf X | dd of="$file" bs=1 seek=100 conv=notrunc 2>/dev/null
done
refused "damaged states" 'no saved state is complete and intact' 2 "$@"
rm state.step-*
refused "a checkpoint without states" 'the checkpoint state exists: ' 2 "$@"

# ---- Sweeps ----

sweep_on() { # arguments...
    start 2 "$programs/sweep" --out study --data images --model mlp --quiet "$@" -- "long: --sync lazy --epochs $epochs"
}
has_log() { [ -s study/.long.jsonl.part ]; }
epochs=100000
sweep_on
interrupt USR1 launcher has_log
[ "$status" = 138 ] && grep -q '^sweep: stopped; study has the results of 0 of 1 run, and the same' output
result $? "a sweep whose runs are not saved ends at once, and says so"

epochs=20
while :; do
    rm -rf study
    sweep_on --checkpoint-every 100000
    interrupt USR1 launcher has_log
    [ "$status" = 0 ] && longer || break
done
[ "$status" = 75 ] && grep -q '^sweep: stopped; study has the results of 0 of 1 run, and the same' output
good=$?
sweep_on --checkpoint-every 100000
finish
mv study study.stopped
[ "$status" = 0 ] && grep -q '"resume"' study.stopped/long.jsonl || good=1
sweep_on
finish
[ "$status" = 0 ] && [ -n "$(outcome study/long.jsonl)" ] || good=1
[ "$(outcome study/long.jsonl)" = "$(outcome study.stopped/long.jsonl)" ] || good=1
result $good "a sweep whose runs are saved goes on in the middle of a run"

print_plan
