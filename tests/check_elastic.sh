#!/bin/sh
# SPDX-License-Identifier: MIT
# What elastic does when ranks and hosts go and come: real runs of train on hosts that are only names, whose parameters
# are compared with those of a run that nobody disturbed, and a launcher that ends as it is told to. Prints the results
# as TAP.
# usage: check_elastic.sh, in the build tree; uses MPICC, MPIRUN and MPIRUN_FLAGS
set -u

root=$(cd "$(dirname "$0")/.." && pwd) || exit 1
# shellcheck source=tests/program_tests.sh
. "$root/tests/program_tests.sh"
. "$root/tests/idx_files.sh"
need_launcher
elastic=$programs/elastic
job=
enter_work
trap '[ -z "$job" ] || { kill "$job" && wait "$job"; } 2>/dev/null; rm -rf "$work"' EXIT
trap 'exit 143' HUP INT TERM
shown=output
data_set images 408 40 8 # 34 batches of 12: nothing is repeated at the end of an epoch
mkdir tmp
export TMPDIR="$work/tmp"

# ---- Helpers ----

# Hosts are names; one is down while there is a file down.NAME.
cat >up <<END
#!/bin/sh
[ ! -e "$work/down.\$1" ]
END
# An mpirun that starts all ranks here. Each leaves its process in a file. The rank that the file "stops" names stops in
# each save but the first, of one run only.
cat >launch <<END
#!/bin/sh
ranks=\$2
shift 2
[ "\$1" != --host ] || shift 2
rm -f pid.*
echo \$\$ >pid.launcher
echo "\$ranks" >>starts
exec "$launcher" $flags -n "\$ranks" sh rank "\$@"
END
cat >rank <<END
#!/bin/sh
rank=\${OMPI_COMM_WORLD_RANK:-\$PMI_RANK}
echo \$\$ >"pid.\$rank"
if [ "\$(cat stops 2>/dev/null)" = "\$rank" ]; then
    rm stops
    export LD_PRELOAD="$work/stop.so" STOP_AFTER=1 STOP_GOES_ON=yes
fi
exec "\$@"
END
# A launcher that takes a line of the file "plan": its status, the step that is saved before it ends, or -, and what it
# says. With "hangs" or "deaf" in place of a status it does not end by itself, or not even on SIGTERM.
cat >pretend <<'END'
#!/bin/sh
echo "$2 ${4:-}" >>starts
read -r status step words <plan
sed -i 1d plan
[ "$step" = - ] || : >"state.step-$(printf %012d "$step")"
[ -z "$words" ] || echo "$words" >&2
case $status in
deaf) trap '' TERM && exec sleep 1000 ;;
hangs) exec sleep 1000 ;;
esac
exit "$status"
END
${MPICC:-mpicc} -shared -fPIC -DSTOP_AT=iso_resume_save -o stop.so "$root/tests/stop_rank.c" || exit 1

comes() { # command...: until it is true, or the program that was started has ended
    tries=$((limit * 20))
    until "$@" 2>/dev/null; do
        tries=$((tries - 1))
        [ $tries -gt 0 ] && ! has_ended "$job" || return 1
        sleep 0.05
    done
}
has_ended() { case $(ps -o stat= -p "$1") in '' | Z*) true ;; *) false ;; esac }
hosts() { printf '%s\n' "$@" >hosts; }
start() { # options of elastic, --, command
    # What is started in the background ignores SIGINT.
    env --default-signal=INT "$elastic" --hostfile hosts --probe "sh up" --every 1 --pause 0 "$@" >stdout 2>output </dev/null &
    job=$!
}
# Lets the rank that has stopped go on, from save to save, until the program ends.
go_on() { # rank
    tries=$((limit * 4))
    while ! has_ended "$job" && [ $tries -gt 0 ]; do
        tries=$((tries - 1))
        kill -CONT "$(cat "pid.$1" 2>/dev/null)" 2>/dev/null
        sleep 0.25
    done
}
finish() {
    comes false # for as long as a program may take
    has_ended "$job" || kill "$job"
    status=0
    wait "$job" || status=$?
    job=
}
says() { grep -qF -- "$1" output; }
begin() { # hosts...: afresh
    rm -rf state* log starts stops down.* output tmp/*
    hosts "$@"
}
options="--data images --model mlp --sync lazy --epochs 2 --quiet --checkpoint state --checkpoint-every 7 --log log"
train_on() {
    # shellcheck disable=SC2086  # several words
    start --mpirun "sh launch" --global-batch 12 -- "$train" $options --batch '{batch}' --resume auto
}
is_stopped() { case $(ps -o stat= -p "$(cat "pid.$1")") in T*) true ;; *) false ;; esac }
started_on() { [ "$(tr '\n' ' ' <starts)" = "$1 " ]; } # ranks of each start
# Whether losses are those of the run that was not disturbed, but for the order of additions.
has_same_losses() {
    for key in train_loss test_loss; do
        awk -v a="$(summary_field $key log.whole)" -v b="$(summary_field $key log)" \
            'BEGIN { exit !(a > 0 && (a - b) ^ 2 < (1e-6 * a) ^ 2) }' || return 1
    done
    [ "$(summary_field test_accuracy log)" = "$(summary_field test_accuracy log.whole)" ]
}
has_same_hash() {
    [ -n "$(summary_field param_hash log)" ] && [ "$(summary_field param_hash log)" = "$(summary_field param_hash log.whole)" ]
}
# There is no rank, and no process and no file of elastic any more.
nothing_left() {
    for file in pid.*; do
        [ ! -e "$file" ] || has_ended "$(cat "$file")" || return 1
    done
    ! ps -eo args | grep -F "$elastic" | grep -qv grep && [ -z "$(ls tmp)" ]
}
settles() {
    tries=300
    until nothing_left; do
        tries=$((tries - 1))
        [ $tries -gt 0 ] || return 1
        sleep 0.1
    done
}

# ---- Ranks and hosts that go and come ----

begin a b c
# shellcheck disable=SC2086
run 3 "$train" $options --batch 4
[ "$status" = 0 ] && mv log log.whole

begin a b c
echo 1 >stops
train_on
comes is_stopped 1 && kill -9 "$(cat pid.1)"
finish
[ "$status" = 0 ] && started_on '3 3' && says 'ended with status 137 after step 7 was saved' && has_same_hash &&
    grep -q '"event":"resume","step":7}' log
result $? "a rank is killed, and the run ends with the parameters of one that nobody disturbed"

begin a b c
echo 0 >stops
train_on
comes is_stopped 0 && : >down.a && kill -9 "$(cat pid.0)"
finish
[ "$status" = 0 ] && started_on '3 2' && says 'starts on 2 ranks: b:1,c:1' && has_same_losses &&
    grep -q '"event":"resume","step":7,"old_ranks":3,' log
result $? "a host is lost, and the run goes on with the ranks that are left"

begin a b
echo 1 >stops
train_on
comes is_stopped 1 && hosts a c d && comes says 'the hosts have changed' && go_on 1
finish
[ "$status" = 0 ] && started_on '2 3' && says 'starts on 3 ranks: a:1,c:1,d:1' && has_same_losses &&
    grep -q '"event":"stop"' log && grep -q '"event":"resume",.*"old_ranks":2,' log && ! says 'ended with status'
result $? "hosts come and one leaves the list, and the run is saved and goes on with the ranks that are there"

# ---- The end ----

begin a b c
echo 2 >stops
train_on
comes is_stopped 2 && kill -USR1 "$job" && go_on 2
finish
[ "$status" = 75 ] && started_on 3 && settles
good=$?
train_on
finish
[ "$status" = 0 ] && started_on '3 3' && has_same_hash || good=1
result $good "SIGUSR1 has the run save its state and ends it, and the same command goes on"

good=0
for code in TERM INT KILL; do
    begin a b
    echo 1 >stops
    train_on
    comes is_stopped 1 && kill "-$code" "$job" || good=1
    began=$(date +%s)
    finish # which would end it at the limit
    [ "$status" != 0 ] && [ $(($(date +%s) - began)) -lt "$limit" ] && settles && started_on 2 || good=1
done
result $good "SIGTERM, SIGINT and SIGKILL leave nothing behind, and no run follows"

# ---- What is started again, and what is not ----

pretend() { # options of elastic...
    start --mpirun "sh pretend" --state state "$@" -- program
    finish
}

begin a b
start --mpirun "sh launch" -- "$train" --no-such-option 1 --checkpoint state --resume auto
finish
[ "$status" = 1 ] && started_on 2 && says 'unknown option' && says 'would do so again: not started again'
result $? "a command that always fails ends at once with its status"

begin a b c
: >down.c
printf '3 - x\n0 -\n' >plan
pretend
good=1
[ "$status" = 3 ] && [ "$(cat starts)" = '2 a:1,b:1' ] && good=0
begin a b # of which one does not answer after the failure
sed 's/^read/[ -s starts ] \&\& : >down.b; read/' pretend >pretend.b
printf '3 - x\n0 -\n' >plan
start --mpirun "sh pretend.b" --state state -- program
finish
[ "$status" = 0 ] && [ "$(tr '\n' ' ' <starts)" = '2 a:1,b:1 1 a:1 ' ] || good=1
result $good "a first failure is final if all hosts answer, and not if one is lost"

begin a
printf '137 5\n1 - no room in 17\n1 - no room in 18\n0 -\n' >plan
pretend
[ "$status" = 1 ] && started_on '1 a:1 1 a:1 1 a:1' && says 'status 1 before it saved a new state, and would do so again'
result $? "a run that fails twice with the same words is not started again"

begin a
locked='train: another training run writes state: process 1 on host b'
late='train: rank 0 of 3 waited 8 s for x (ISO_TIMEOUT sets the limit)'
printf '%s\n' "1 - $late" "1 - $late" "139 9" "1 - $locked" "1 - $locked" "75 -" "0 -" >plan
pretend
[ "$status" = 0 ] && [ "$(wc -l <starts)" = 7 ]
result $? "time-outs, crashes and the lock of a lost run are"

begin a
printf '137 -\n137 -\n137 3\n137 -\n137 -\n137 -\n0 -\n' >plan
pretend --max-restarts 2
[ "$status" = 137 ] && [ "$(wc -l <starts)" = 5 ] && says 'gives up after 2 restarts without a new saved state'
result $? "restarts without progress are counted, and progress sets them back"

begin a b
: >down.b
pretend --min-ranks 2 --max-restarts 1
[ "$status" = 1 ] && [ ! -e starts ] &&
    says 'gives up after 1 restart without a new saved state: the hosts that answer (a) have room for 1 rank, and --min-ranks is 2; no answer from b'
result $? "it gives up if too few hosts answer"

own=$(uname -n)
begin a "$own" localhost
: >down.a && : >"down.$own" && : >down.localhost
printf '0 -\n' >plan
pretend
[ "$status" = 0 ] && [ "$(cat starts)" = "2 $own:1,localhost:1" ]
result $? "the host of the program counts as answering, whatever --probe says"

begin a
printf 'hangs 4\n5 - x\n0 -\n' >plan
start --mpirun "sh pretend" --state state -- program
comes test -s starts && hosts a b && comes says 'the hosts have changed' # which ends sleep with 138
finish
[ "$status" = 0 ] && [ "$(tr '\n' ' ' <starts)" = '1 a:1 2 a:1,b:1 1 a:1 ' ] && says 'leaves out b:'
result $? "a host that comes and lets the run fail is left out"

begin a 'b slots=4'
printf 'hangs 4\n0 -\n' >plan
start --mpirun "sh pretend" --state state --lost 2 -- program
comes test -s starts && : >down.b
finish
good=1
[ "$status" = 0 ] && [ "$(tr '\n' ' ' <starts)" = '5 a:1,b:4 1 a:1 ' ] &&
    says 'b has not answered 2 checks in a row: ends mpirun' && good=0
begin 'a slots=7'
printf 'deaf 4 train: the job ends here by MPI_Abort: x\n0 -\n' >plan
start --mpirun "sh pretend" --state state --grace 0 --max-ranks 6 --global-batch 8 -- program '{batch}'
finish
[ "$status" = 0 ] && [ "$(tr '\n' ' ' <starts)" = '4 a:4 4 a:4 ' ] && says 'status 137 after step 4' && settles || good=1
result $good "a launcher that hangs after a host or its ranks are lost is ended"

# ---- The list of hosts ----

# At the first start; with a launcher that would succeed.
refused_list() { # sentence, lines of the file...
    sentence=$1
    shift
    rm -rf starts
    printf '0 -\n' >plan
    [ $# = 0 ] || printf '%s\n' "$@" >hosts
    run_alone "$elastic" --hostfile hosts --probe true --mpirun "sh pretend" --state state -- program
    cat stdout stderr >output
    [ "$status" = 1 ] && one_sentence elastic "$sentence" stderr && [ ! -e starts ] && [ -z "$(ls tmp)" ] || good=1
}
good=0
rm -f hosts
refused_list 'cannot read --hostfile hosts: No such file or directory: give a file with a line NAME slots=N for each host$'
: >hosts
refused_list 'the file of --hostfile, hosts, names no host: write a line NAME slots=N for each host$'
refused_list 'the file of --hostfile, hosts, names no host: ' '# a slots=2' ''
refused_list 'hosts, line 2: "b slots=x" is no host: write NAME slots=N$' 'a' 'b slots=x'
refused_list 'hosts, line 1: "localhost:2" is no host: write localhost slots=2$' 'localhost:2'
refused_list 'hosts, line 3: "slots=2" is no host: ' '' '' 'slots=2'
refused_list 'hosts, line 1: "a 2" is no host: ' 'a 2 # cores'
refused_list 'hosts, line 1: "a b" is no host: ' 'a b'
result $good "a list of hosts that is missing, empty or malformed is refused at once"

begin 'localhost slots = 2' 'fe80::1 slots=1 max_slots = 3' "$(printf '\tc max-slots=2 slots =4\r')"
printf '0 -\n' >plan
pretend
[ "$status" = 0 ] && [ "$(cat starts)" = '7 localhost:2,fe80::1:1,c:4' ]
result $? "lists may be written as Open MPI reads them"

begin a
printf 'hangs 4\n0 -\n' >plan
start --mpirun "sh pretend" --state state -- program
comes test -s starts && hosts a 'b slots=x' && comes says 'keeps the last one: hosts, line 2: "b slots=x" is no host' &&
    sleep 2 && hosts a b && comes says 'the hosts have changed'
finish
[ "$status" = 0 ] && [ "$(tr '\n' ' ' <starts)" = '1 a:1 2 a:1,b:1 ' ] && [ "$(grep -c 'cannot read the list' output)" = 1 ]
good=$?
begin a
printf '137 4\n0 -\n' >plan
sed 's/^read/rm -f hosts; read/' pretend >pretend.b
start --mpirun "sh pretend.b" --state state --max-restarts 1 -- program
finish
[ "$status" = 137 ] && says 'gives up after 1 restart' && says 'cannot read --hostfile hosts: No such file' || good=1
result $good "one that is damaged during a run is read again, and the reason is told"

begin a b
printf 'hangs 4\n0 -\n' >plan
start --mpirun "sh pretend" --state state --lost 2 --pause 1 -- program
comes test -s starts && hosts a 'b slots=x' && comes says 'keeps the last one' && : >down.b &&
    comes says 'b has not answered 2 checks in a row: ends mpirun' && hosts a b
finish
[ "$status" = 0 ] && [ "$(tr '\n' ' ' <starts)" = '2 a:1,b:1 1 a:1 ' ]
result $? "meanwhile a lost host of the last list is noticed"

# ---- The command line ----

refused() { # sentence, arguments...
    sentence=$1
    shift
    run_alone "$elastic" "$@"
    [ "$status" = 1 ] && one_sentence elastic "$sentence" stderr || good=1
}
good=0
refused 'give the command to start' --max-ranks 2
refused 'unknown option --max: see --help' --max 2 -- program
refused 'give -- before the command' program
refused '--every 0: give a number from 1 on' --every 0 -- program
refused '--lost x: give a whole number' --lost x -- program
refused '--state needs a value' --state
refused 'give --hostfile, --hosts-command or --max-ranks' --state x -- program
refused '--min-ranks 3 is more than --max-ranks 2' --min-ranks 3 --max-ranks 2 --state x -- program
refused 'give the command a --checkpoint, or --state' --max-ranks 2 -- program
refused 'add --resume auto' --max-ranks 2 -- program --checkpoint=x
refused 'the command has \{batch\}: give --global-batch' --max-ranks 2 --state x -- program '{batch}'
refused '--global-batch has no effect' --max-ranks 2 --state x --global-batch 4 -- program
result $good "a bad command line is refused with a sentence"
fails_on_full_output elastic "$elastic" --help
result $? "--help on a full disk fails"

print_plan
