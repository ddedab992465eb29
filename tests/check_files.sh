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
trap '[ -z "$job" ] || kill "$job"; exit 143' INT TERM HUP
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
protected "nor does the checkpoint of the best parameters" --resume --checkpoint-best \
    --checkpoint c --resume c --validation 0.25 --checkpoint-best c.step-000000000003
protected "nor the checkpoint that the run goes on with" --resume --checkpoint-best \
    --checkpoint d --resume c --validation 0.25 --checkpoint-best c
cp c loaded
run_alone "$train" "$@" --steps 1 --load loaded --checkpoint loaded --overwrite
[ "$status" = 0 ] && ! cmp -s c loaded
result $? "a checkpoint may replace the one that the run loaded"

run_alone "$train" "$@" --steps 3 --checkpoint n --checkpoint-every 1
ln n best
ln n.step-000000000003 second
run_alone "$train" "$@" --steps 4 --validation 0.25 --overwrite --checkpoint n --checkpoint-best best --trace second
[ "$status" = 0 ] && ! cmp -s n.step-000000000003 second && grep -q displayTimeUnit second
result $? "outputs that replace files may have been hard links"
good=0
for _ in new there; do
    run_alone "$train" "$@" --steps 4 --checkpoint c --checkpoint-every 1 --resume c --extend --log c.step-times.jsonl
    [ "$status" = 0 ] || good=1
    run_alone "$train" "$@" --steps 1 --overwrite --log images/train-images.log
    [ "$status" = 0 ] || good=1
done
result $good "names that only begin as those of inputs may be outputs"
protected "a log does not replace data under another name" --data --log --log images/labels

refused "a log and a trace are two files" 'two outputs would go to folder/link: give another --trace$' \
    "$train" "$@" --overwrite --steps 1 --log c --trace folder/link
ln -s missing dangling
refused "also where neither is there" 'two outputs would go to dangling: give another --trace$' \
    "$train" "$@" --overwrite --steps 1 --log missing --trace dangling

# ---- Outputs of a run that goes on ----

end_job() {
    kill "$job"
    wait "$job"
    job=
}
unchanged() { # what holds, pattern of the sentence, arguments...: only the first run's files grow
    name=$1
    sentence=$2
    shift 2
    run_alone "$train" --data images --model mlp --quiet --overwrite --steps 1 "$@"
    [ "$status" = 1 ] && one_sentence train "$sentence" stderr && [ -e c.step-000000000003 ] &&
        [ "$(ls board)" = "$files" ] && head -n 1 live | grep -q '^{"event":"epoch","epoch":1,'
    result $? "$name"
}
timeout -k 60 120 "$train" "$@" --epochs 1000000 --log live --tensorboard board >first 2>&1 </dev/null &
job=$!
wait_until grep -q '"epoch":2' live
files=$(ls board)
unchanged "a log that a run writes is not overwritten" \
    'another process writes the log live: wait until it ends, or give another --log \(if there is no such process, remove live\)$' --checkpoint c --log live
unchanged "nor are its event files" \
    'cannot remove board/events.*: another process writes it: wait until it ends, or give another folder \(if there is no such process, remove the file\)$' \
    --checkpoint c --tensorboard board
end_job
awk '!/^{"event":".*}$/ { bad = 1 } END { exit bad }' live
result $? "its log is whole"
run_alone "$train" "$@" --steps 1 --overwrite --log live --tensorboard board
[ "$status" = 0 ] && [ "$(grep -c . live)" = 2 ] && [ "$(ls board)" != "$files" ] && [ "$(ls board | wc -l)" = 1 ]
result $? "they are once it has ended"

# On SMB, where a lock keeps out those who only read.
cat >smb.c <<'END'
#include <sys/vfs.h>
int fstatfs(int file, struct statfs *out) {
    (void)file;
    *out = (struct statfs){.f_type = 0xFF534D42};
    return 0;
}
END
${MPICC:-mpicc} -shared -fPIC -o smb.so smb.c || exit 1
LD_PRELOAD=$PWD/smb.so timeout -k 60 120 "$train" "$@" --epochs 1000000 --overwrite --log live >first 2>&1 </dev/null &
job=$!
wait_until grep -q '"epoch":2' live
flock -n live true
result $? "a log on SMB is not locked"
end_job

rm -f c c.* folder/link
ln -s ../c folder/link
timeout -k 60 120 "$train" "$@" --epochs 1000000 --checkpoint c >first 2>&1 </dev/null &
job=$!
wait_until test -s c
run_alone "$train" "$@" --steps 1 --checkpoint folder/link --overwrite
[ "$status" = 1 ] && one_sentence train 'another training run writes folder/link: process .* remove folder/../c.lock' stderr
result $? "a link does not get around the lock of a checkpoint"
end_job
timeout -k 60 120 "$train" "$@" --epochs 1000000 --checkpoint folder/link --overwrite >first 2>&1 </dev/null &
job=$!
wait_until test -s c.lock
run_alone "$train" "$@" --steps 1 --checkpoint c --overwrite
[ "$status" = 1 ] && one_sentence train 'another training run writes c: process ' stderr
result $? "nor does what it leads to, if a run writes by the link"
end_job
[ ! -e c.lock ] && [ -L folder/link ]
result $? "the lock goes with its run"

print_plan
