#!/bin/sh
# SPDX-License-Identifier: MIT
# Runs trainings that want the same files, one after the other and at once, and ends trainings by signals. Prints the
# results as TAP.
# usage: check_lock.sh, in the build tree; uses MPIRUN and MPIRUN_FLAGS
set -u

root=$(cd "$(dirname "$0")/.." && pwd) || exit 1
# shellcheck source=tests/program_tests.sh
. "$root/tests/program_tests.sh"
. "$root/tests/idx_files.sh"
need_launcher
job=
trap '[ -z "$job" ] || kill "$job"; exit 143' INT TERM HUP
enter_work
data_set images 96 40 8

explain() {
    ls -l | sed 's/^/# /'
    cat output first 2>/dev/null | sed 's/^/# /'
}
# A training that one process is enough for, and its output.
train_alone() { # arguments...
    run_alone "$train" --data images --model mlp --quiet "$@"
    cat stdout stderr >output
}
refused() { # what holds, pattern of the sentence, arguments...
    name=$1
    sentence=$2
    shift 2
    train_alone "$@"
    [ "$status" = 1 ] && one_sentence train "$sentence" output
    result $? "$name"
}
# A run without end in the background, as $job, once it has saved a set; without a launcher for 0 ranks.
start() { # ranks, arguments...
    ranks=$1
    shift
    set -- "$train" --data images --model mlp --quiet --epochs 1000000 "$@"
    # shellcheck disable=SC2086  # flags are several words
    [ "$ranks" = 0 ] || set -- "$launcher" $flags -n "$ranks" "$@"
    timeout -k 60 120 "$@" >first 2>&1 </dev/null &
    job=$!
    wait_until saved
}
saved() { [ -n "$(find . -name 'c.step-????????????')" ]; }
# The process that a lock names.
holder() { cut -d ' ' -f 2 c.lock; }
finish() {
    status=0
    wait "$job" || status=$?
    job=
}

# Half a minute ago, and a minute and a half.
good=0
for contents in '' garbage; do
    printf %s "$contents" >c.lock
    train_alone --steps 1 --checkpoint c
    [ "$status" = 1 ] && one_sentence train 'another training run has just begun to write c' output || good=1
    touch -d '90 seconds ago' c.lock
    train_alone --steps 1 --checkpoint c
    [ "$status" = 0 ] && [ ! -e c.lock ] &&
        one_sentence train 'warning: took over c.lock of a process that it does not name, .* for [0-9]+ s$' output || good=1
    rm -f c*
done
result $good "an empty or a damaged lock is taken over after a minute, with a warning"

# ---- Files that are there ----

train_alone --steps 3 --log log --checkpoint c --checkpoint-every 1
[ "$status" = 0 ] && [ ! -e c.lock ]
result $? "a run takes its lock away with it"
cp log log.before
cp c c.before
refused "a log that is there is not written over" 'the log log exists: .*--overwrite' --steps 1 --log log
refused "a checkpoint that is there is not written over" 'the checkpoint c.before exists: .*--overwrite' \
    --steps 1 --checkpoint c.before
refused "nor one with saved states" 'saved states of c exist up to step 3: .*--overwrite' --steps 1 --checkpoint c
refused "nor by a run that was resumed from another" 'saved states of c exist up to step 3' \
    --steps 1 --checkpoint c --resume other --checkpoint-every 1
cmp -s log log.before && cmp -s c c.before && [ ! -e c.lock ]
result $? "all of them are as they were"
train_alone --steps 3 --log log --checkpoint c --checkpoint-every 1 --resume c
[ "$status" = 0 ]
result $? "a run that is resumed goes on with its files"
train_alone --steps 2 --log log --checkpoint c --checkpoint-every 2 --overwrite
[ "$status" = 0 ] && [ "$(grep -c summary log)" = 1 ] && ! cmp -s c c.before && [ ! -e c.step-000000000003 ] &&
    [ -e c.step-000000000002 ]
result $? "--overwrite replaces a log, a checkpoint and what was saved"
: >empty
train_alone --steps 1 --log empty
[ "$status" = 0 ] && grep -q summary empty && train_alone --steps 1 --log /dev/null && [ "$status" = 0 ]
result $? "an empty file and a device may be logs"

# ---- Two runs at once ----

rm -f c* log
start 2 --checkpoint c --checkpoint-every 1
refused "a second run is told of the first" \
    "another training run writes c: process [0-9]+ on host $(hostname), for [0-9]+ s by now: .*another --checkpoint" \
    --steps 1 --checkpoint c --overwrite
refused "also one that would resume it" "another training run writes c: process $(holder)" \
    --steps 1 --checkpoint c --resume c
pid=$(holder)
if unshare -p -f true 2>/dev/null; then # as root
    status=0
    timeout -k 5 60 unshare -p -f --mount-proc "$train" --data images --model mlp --quiet --steps 1 --checkpoint c \
        --overwrite >output 2>&1 </dev/null || status=$?
    [ "$status" = 1 ] && grep -q "^train: another training run writes c: process $pid on" output && saved
    result $? "and one in another container of this host's name"
fi
kill -9 "$pid"
finish
[ -e c.lock ] && train_alone --epochs 1 --checkpoint c --overwrite
[ "$status" = 0 ] && grep -q '^train: warning: took over c.lock of process [0-9]* on host .*, which has ended' output
result $? "the lock of a run that was killed is taken over with a warning"

foreign() { # when it was touched
    printf 'elsewhere 1 %d\n' "$(date +%s)" >c.lock
    touch -d "$1" c.lock
}
foreign now
refused "a fresh lock of another host holds" 'another training run writes c: process 1 on host elsewhere' \
    --steps 1 --checkpoint c --overwrite
foreign '2 minutes ago'
train_alone --steps 1 --checkpoint c --overwrite
[ "$status" = 0 ] &&
    grep -qE '^train: warning: took over .* process 1 on host elsewhere, which has not touched it for 12[0-9] s' output
result $? "one that was not touched for a minute does not"

# A process that has ended, of this host's name: on this kernel, or by the record elsewhere.
ended=$(sh -c 'echo $$')
boot=$(cat /proc/sys/kernel/random/boot_id)
space=$(stat -L -c %i /proc/self/ns/pid)
namesake() { # boot, namespace, when it was touched
    printf '%s %d %d %s %s\n' "$(hostname)" "$ended" "$(date +%s)" "$1" "$2" >c.lock
    touch -d "$3" c.lock
}
namesake "$boot" "$space" now
train_alone --steps 1 --checkpoint c --overwrite
[ "$status" = 0 ] && grep -q "^train: warning: took over c.lock of process $ended .*, which has ended" output
result $? "a fresh lock of a process that has ended does not"
held="another training run writes c: process $ended on host $(hostname)"
namesake 00000000-0000-4000-8000-000000000000 "$space" now
refused "it does if its machine only has the same name" "$held" --steps 1 --checkpoint c --overwrite
namesake "$boot" 1 now
refused "and if its process is of another container" "$held" --steps 1 --checkpoint c --overwrite
printf '%s %d %d\n' "$(hostname)" "$ended" "$(date +%s)" >c.lock
refused "and if it does not say" "$held" --steps 1 --checkpoint c --overwrite
namesake "$boot" 1 '2 minutes ago'
train_alone --steps 1 --checkpoint c --overwrite
[ "$status" = 0 ] && grep -q "^train: warning: took over c.lock of process $ended .* has not touched it for 12" output
result $? "until it was not touched for a minute"

# A host whose clock is two minutes ahead of the file system's.
echo '#include <sys/time.h>
#include <time.h>
time_t time(time_t *out) {
    struct timeval now;
    gettimeofday(&now, NULL);
    if (out) *out = now.tv_sec + 120;
    return now.tv_sec + 120;
}' >ahead.c
${MPICC:-mpicc} -shared -fPIC -o ahead.so ahead.c || exit 1
foreign now
status=0
LD_PRELOAD=$PWD/ahead.so timeout -k 5 60 "$train" --data images --model mlp --quiet --steps 1 --checkpoint c --overwrite \
    >output 2>&1 </dev/null || status=$?
[ "$status" = 1 ] && grep -q '^train: another training run writes c: process 1 on host elsewhere, for 12[0-9] s' output &&
    [ -z "$(find . -name 'c.lock.*')" ]
result $? "a fresh lock holds where the clocks of host and file system differ"

good=0
for _ in 1 2 3; do
    foreign '2 minutes ago'
    for taker in 1 2 3 4; do
        timeout -k 5 60 "$train" --data images --model mlp --quiet --steps 300 --checkpoint c --overwrite \
            >"taker.$taker" 2>&1 </dev/null &
    done
    wait
    # Later ones may come when the first has ended; the one that was left over is taken once.
    [ "$(cat taker.* | grep -c 'took over')" = 1 ] || good=1
    [ "$(cat taker.* | grep -c 'took over')$(cat taker.* | grep -vc 'took over\|another training run')" = 10 ] || good=1
    cat taker.* >first
done
result $good "of four runs that find a lock left over one takes it over"

rm -f c*
start 0 --checkpoint c --checkpoint-every 100
printf 'elsewhere 1 %d\n' "$(date +%s)" >c.lock
finish
[ "$status" = 1 ] && grep -q '^train: c.lock was taken over by process 1 on host elsewhere' first && [ -e c.lock ]
result $? "a run whose lock was taken over ends, and leaves that lock"

# ---- Signals ----

for code in INT TERM; do
    rm -f c*
    start 0 --checkpoint c --checkpoint-every 100
    kill "-$code" "$(holder)"
    finish
    [ "$status" = 75 ] && [ ! -e c.lock ] && [ "$(grep -c '^train: stopped ' first)" = 1 ] &&
        grep -qE "^train: stopped by SIG$code: the newest checkpoint is c.step-[0-9]*: continue with .* --resume c$" \
            first && [ -e "$(sed -n 's/.*stopped.* is \(c.step-[0-9]*\):.*/\1/p' first)" ]
    result $? "SIG$code ends a run with a word on its newest checkpoint"
done

# Nearly always in the middle of a save.
good=0
for _ in 1 2 3 4 5; do
    rm -f c*
    start 0 --checkpoint c --checkpoint-every 1
    kill -INT "$job"
    finish
    [ "$status" = 75 ] && saved && [ -z "$(find . -name 'c*.tmp.*')" ] && [ -z "$(find . -name '*.lock')" ] || good=1
done
result $good "SIGINT in a save leaves nothing that is not whole"

# Open MPI's launcher leaves ranks one second. Only if this machine stood still for half a second, or was so busy that
# the second ran out, is the run repeated, twice at most.
ticks() {
    while sleep 0.05; do date +%s%N; done >ticks
}
stood_still() {
    awk 'last && $1 - last > 5e8 { found = 1 } { last = $1 } END { exit !found }' ticks
}
good=1
for _ in 1 2 3; do
    rm -f c*
    ticks &
    ticker=$!
    start 2 --checkpoint c --checkpoint-every 20
    pid=$(ps -o ppid= -p "$(holder)" | tr -d ' ') # the launcher's
    began=$(date +%s%N)
    kill -TERM "$pid"
    finish
    took=$(($(date +%s%N) - began))
    has_failed && [ ! -e c.lock ] &&
        [ "$(grep -c '^train: stopped by SIGTERM[^:]*: the newest checkpoint is c.step-' first)" = 1 ] && good=0
    kill "$ticker"
    [ "$good" = 1 ] && { stood_still || [ "$took" -gt 900000000 ]; } || break
done
result $good "so does a signal to the launcher, and once"

rm -f c*
timeout -k 5 60 "$train" --data images --model mlp --epochs 1000000 >first 2>&1 </dev/null &
job=$!
wait_until grep -q '^epoch 2' first
kill -TERM "$job"
finish
[ "$status" = 143 ] && grep -q '^train: stopped by SIGTERM: nothing was saved: runs with --checkpoint' first
result $? "a run that saves nothing says so"

# A terminal of its own: the line is open when the signal comes.
rm -f first pid
script -qec "sh -c 'stty cols 80; echo \$\$ >pid; exec $train --model mlp --epochs 1000'" first \
    >output 2>&1 </dev/null &
job=$!
wait_until grep -q ETA first
kill -TERM "$(cat pid)"
finish
tr -d '\r' <first | grep -q '^train: stopped by SIGTERM: nothing was saved'
result $? "the progress line is ended before it"

rm -f first
mkdir folder
script -qec "sh -c 'stty cols 80; exec $train --model mlp --epochs 1000 --checkpoint folder/c --checkpoint-every 150'" first \
    >output 2>&1 </dev/null &
job=$!
wait_until grep -q ETA first
mv folder gone
finish
[ "$status" = 1 ] && [ "$(tr -d '\r' <first | grep -cE '^train: .*folder/c\.(step-|tmp\.)')" = 1 ]
result $? "and before an error"

# ---- The best parameters ----

rm -rf c* gone
start 0 --checkpoint c --checkpoint-every 1 --validation 0.25 --checkpoint-best best
writes_best="another training run writes best: process $(holder) on host .*another --checkpoint"
refused "a second run may not write the best parameters to the same file" "$writes_best-best " \
    --epochs 1 --validation 0.25 --checkpoint-best best --overwrite
refused "nor its checkpoint" "$writes_best " --steps 1 --checkpoint best --overwrite
kill "$job"
finish
[ ! -e c.lock ] && [ ! -e best.lock ]
result $? "a run takes both of its locks away with it"
refused "two names of one file" 'two outputs would go to ./d: give another --checkpoint-best' \
    --epochs 1 --validation 0.25 --checkpoint d --checkpoint-best ./d
[ ! -e d.lock ] && train_alone --epochs 1 --validation 0.25 --checkpoint-best best --overwrite && [ "$status" = 0 ] &&
    [ -s best ] && [ ! -e best.lock ]
result $? "the best parameters alone have a lock, too"

print_plan
