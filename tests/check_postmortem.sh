#!/bin/sh
# SPDX-License-Identifier: MIT
# What postmortem says about jobs that end in different ways, and about damaged records. Prints the results as TAP.
# usage: check_postmortem.sh, in the build tree; uses MPIRUN and MPIRUN_FLAGS
set -u

root=$(cd "$(dirname "$0")/.." && pwd) || exit 1
# shellcheck source=tests/program_tests.sh
. "$root/tests/program_tests.sh"
make_records=$PWD/tests/make_records
postmortem=$PWD/bin/postmortem
need_launcher
enter_work

# ---- Records of a made-up job -----------------------------------------------------------------------

says() { # what should hold, pattern, arguments...
    name=$1
    pattern=$2
    shift 2
    run_alone "$postmortem" "$@"
    [ "$status" = 0 ] && grep -qE "$pattern" stdout
    result $? "$name"
}
made() { # case
    rm -rf records
    mkdir records
    "$make_records" records "$1" || exit 1
}
made same
says "equal records are called so" '^All ranks have started the same operations' records
says "a wait and a note are shown" '^ +2  host1 +1002 +0.000 s  epoch 17 +has waited 4.0 s for "a barrier"$' records
run_alone "$postmortem" records
[ "$status" = 0 ] && [ -s stdout ] && ! grep -qE '^(Divergence|Behind|No record|Ended)' stdout
result $? "equal records show no divergence and no gap"
rm records/rank-1.rec
says "a rank without a record is named" '^No record: 1 of 3 ranks: 1$' records
made differs
says "the first operation that differs is named with both sides" \
    '^Divergence: exchange 3 is "fc3" \(64 bytes\) on rank 0, but "fc2" \(64 bytes\) on rank 1,' records
for kind in behind wrapped; do
    made $kind
    says "the rank that is behind is named ($kind)" \
        '^Behind: rank 2 \(host1\) has not started exchange 4 \("fc4"\), which rank [01] started 6.000 s before the end' \
        records
    run_alone "$postmortem" records
    [ "$(grep -c '^Behind' stdout)" = 1 ]
    result $? "and no other rank ($kind)"
done
made woke
says "a rank that was stopped and woke at the end is named" '^Stopped: rank 1 \(host0\): rank 0 found it stopped by a signal$' \
    records
[ "$(grep -cE '^(Stopped|Behind|Not waiting|Silent)' stdout)" = 1 ] && ! grep -q '^All ranks have started' stdout
result $? "and nothing else is said to be wrong"
made torn
says "incomplete entries and wild numbers are passed over" '^3 ranks, 3 records' records
says "and so they are in the list of entries" 'posted +0 +3 +64  x+[.]{3}$' records --entries 1
made same
LC_ALL=C sed "s/host0/h$(printf '\033')st0/g" records/rank-1.rec >changed && mv changed records/rank-1.rec
says "a control character of a damaged record is not printed" 'h[?]st0' records
made same
"$make_records" records earlier || exit 1
says "records of an earlier job are ignored" '^3 ranks, 3 records, .*2023-11-1' records
grep -q '^postmortem: warning: ignored 3 records of earlier jobs$' stderr
result $? "which a warning says"
says "entries are printed, the oldest first" '^ +1  .*call +0 +1 +0  a barrier$' records --entries 2
head -n 1 stdout | grep -qE '^ +number +time +event +stream +sequence +bytes +name$' && [ "$(grep -c number stdout)" = 1 ]
result $? "under a line that names the columns"

# ---- Bad input --------------------------------------------------------------------------------------

refuses() { # what should hold, pattern, arguments...
    name=$1
    pattern=$2
    shift 2
    run_alone "$postmortem" "$@"
    [ "$status" = 1 ] && grep -qE "^postmortem: $pattern" stderr && ! has_crashed stderr
    result $? "$name"
}
mkdir empty
refuses "a folder without records is refused" 'empty has no flight records' empty
refuses "a folder that does not exist is refused" 'cannot read the folder nowhere' nowhere
refuses "no folder is refused" 'give the folder of the records'
refuses "an unknown option is refused" 'unknown option --stack' --stack records
refuses "a rank that the job does not have is refused" '--entries 3: give a rank from 0 to 2' records --entries 3
made same
run_alone "$postmortem" records
fails_on_full_output postmortem "$postmortem" records
result $? "a full disk is an error"
head -c 1000 records/rank-0.rec >records/short
mv records/short records/rank-0.rec
printf 'isorec02' | dd of=records/rank-1.rec conv=notrunc 2>dd.log
says "damaged records are passed over" '^3 ranks, 1 record,' records
[ "$(grep -c '^postmortem: warning: records/rank-[01].rec ' stderr)" = 2 ]
result $? "each with a warning"

# ---- Real jobs --------------------------------------------------------------------------------------

# Starts a long training on three ranks, and waits until it trains.
start() { # seconds of the time-out
    rm -rf records
    # shellcheck disable=SC2086
    ISO_TIMEOUT=$1 ISO_RECORDER=records timeout -k 5 "$limit" "$launcher" $flags -n 3 "$train" --model mlp --steps 1000000 \
        --quiet >stdout.job 2>stderr.job </dev/null &
    job=$!
    tries=0
    until "$postmortem" records 2>/dev/null | grep -q ' 1  .*step [0-9][0-9]'; do
        tries=$((tries + 1))
        [ $tries -lt 150 ] && kill -0 $job 2>/dev/null || break
        sleep 0.2
    done
    pid=$("$postmortem" records 2>/dev/null | awk '$1 == "1" { print $3 }')
    [ -n "$pid" ]
}
start 4 && kill -STOP "$pid"
status=0
wait $job || status=$?
run_alone "$postmortem" records
# They say where it is, too: behind, or, if it had started all that they have, not waiting.
grep -qE '^(Stopped|Behind|Not waiting|Silent): rank 1 ' stdout && ! grep -qE '^(Stopped|Behind|Not waiting|Silent): rank [02] ' stdout
result $? "a rank that is stopped is named, and no other"
says "the others have found out what it was" '^Stopped: rank 1 .*: rank [02] found it stopped by a signal$' records
says "the ranks that timed out have left stacks" '^Rank 0, stack at: rank 0 of 3 waited 4 s' records --stacks
# While the job hangs: the operating system knows the processes of this host.
export ISO_STALL_WARN=1
start 60 && kill -STOP "$pid" && sleep 2
says "a job that hangs is said to run, and its stopped rank is named" '^Stopped: rank 1 ' records
grep -q '^3 ranks, 3 records, running at ' stdout && grep -qE '^ +[02] .* has waited [1-9][0-9]*\.[0-9] s for ' stdout
result $? "with times until now"
says "the warning about it is recorded" 'warn +0 +1 +0  rank 1 on .*[.]{3}$' records --entries 0
cp records/rank-1.rec before.rec
ISO_RECORDER=records run 3 "$train" --model mlp --steps 5 --quiet
has_failed && one_sentence train 'records/rank-[012].rec belongs to a job that still runs: give each job a folder' stderr &&
    cmp -s records/rank-1.rec before.rec
result $? "another job that is given the same folder is refused"
unset ISO_STALL_WARN
kill -KILL "$pid"
wait $job
start 60 && kill -SEGV "$pid"
wait $job
says "a rank that crashed is named with its signal" '^Ended: rank 1 .* by: SIGSEGV$' records
! grep -qE '^(Behind|Not waiting|Silent)' stdout
result $? "and no healthy rank beside it"
says "and has left its stack" '^Rank 1, stack at: SIGSEGV$' records --stacks
if "$launcher" --version 2>/dev/null | grep -qE 'Open MPI|OpenRTE'; then
    grep -q 'Segmentation fault' stderr.job
    result $? "Open MPI's handler still prints its own"
fi
start 60 && kill -KILL "$pid"
wait $job
says "a rank that was killed has left its record" '^ +1  .*  step [0-9]+ ' records
says "and is said to have ended without a reason" '^ +1  .*ended without a reason \(killed\?\)$' records

# A run as usual: nothing is said to be wrong.
rm -rf records
ISO_RECORDER=records/of/job run 2 "$train" --model mlp --steps 5 --quiet
says "a job that has ended well is called so" '^All ranks have called MPI_Finalize.$' records/of/job

# Where no file can be made.
ISO_RECORDER=/dev/null/records run 2 "$train" --model mlp --steps 5 --quiet
has_failed && one_sentence train 'cannot make the folder /dev/null/records: Not a directory \(ISO_RECORDER\)' stderr
result $? "a folder that cannot be made is one sentence"
rm -rf records before.rec
ISO_RECORDER='' run 2 "$train" --model mlp --steps 5 --quiet
[ "$status" = 0 ] && [ -z "$(find . -name '*.rec')" ]
result $? "without a folder there is no file"

print_plan
