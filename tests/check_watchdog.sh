#!/bin/sh
# SPDX-License-Identifier: MIT
# Checks what the watchdog of a rank (ISO_WATCHDOG) does with a launcher that goes on after its rank, and whom it spares.
# The launcher is a script that never ends by itself. Prints the results as TAP. tests/cluster has the case of an mpirun.
# usage: check_watchdog.sh, in the build tree
set -u

root=$(cd "$(dirname "$0")/.." && pwd) || exit 1
script=$root/tests/check_watchdog.sh
# shellcheck source=tests/program_tests.sh
. "$root/tests/program_tests.sh"
. "$root/tests/idx_files.sh"
need_launcher
enter_work
shown=output
data_set images 96 40 8
export ISO_WATCHDOG=1

cat >mpirun <<'END'
#!/bin/sh
# Starts a rank, and goes on for ever.
[ "$1" = deaf ] && trap '' TERM
shift
"$@" &
echo $! >rank
wait $!
echo $? >status
while :; do sleep 0.1; done
END
chmod +x mpirun

comes() { # tenths of a second, condition...
    tries=$1
    shift
    until "$@"; do
        tries=$((tries - 1))
        [ $tries -gt 0 ] || return 1
        sleep 0.1
    done
}
gone() { ! kill -0 "$1" 2>/dev/null; }
trains() { [ -s log ] && grep -q '"event":"epoch"' log; }
watchdog_of() { cat /proc/[0-9]*/stat 2>/dev/null | awk -v rank="$1" '$2 == "(iso-watchdog)" && $4 == rank { print $1 }'; }
# A launcher ($job) whose rank is killed while it trains.
lose_rank() { # deaf or heeding
    rm -f rank log
    ./mpirun "$1" "$train" --data images --model mlp --epochs 1000000 --quiet --log log --overwrite >output 2>&1 </dev/null &
    job=$!
    comes 300 trains && kill -9 "$(cat rank)"
}
told() { grep -q "^train: mpirun (pid $job) still ran 1 s after the end of a rank and was ended (ISO_WATCHDOG)$" output; }
survives() { # seconds
    sleep "$1"
    ! gone $job
}

# Another process gets the pid of the launcher, under its name, before the watchdog looks again.
reuse_pid() {
    lose_rank heeding || return 1
    old=$job
    kill -9 "$old"
    wait "$old" 2>/dev/null
    echo $((old - 1)) >/proc/sys/kernel/ns_last_pid
    ./mpirun heeding sleep 10 >again 2>&1 </dev/null &
    job=$!
    [ "$old" = "$job" ] && survives 2
}
if [ "${1:-}" = --reuse ]; then
    reuse_pid
    exit
fi

for kind in heeding deaf; do
    lose_rank $kind && comes 100 gone $job && comes 50 told
    result $? "a $kind launcher that goes on after the end of its rank is ended, and a message says so"
    kill -9 $job 2>/dev/null
    wait $job 2>/dev/null
done

# ---- Who is spared -----------------------------------------------------------------------------------

rm -f rank log
./mpirun heeding "$train" --data images --model mlp --steps 2 --quiet --log log >output 2>&1 </dev/null &
job=$!
comes 300 test -s rank && comes 300 gone "$(cat rank)" && grep -q '"event":"summary"' log && survives 2
result $? "a launcher whose rank has ended well goes on"
kill -9 $job
wait $job 2>/dev/null

rm -f rank log status
./mpirun heeding "$train" --data images --model mlp --epochs 1000000 --quiet --log log --checkpoint state >output 2>&1 </dev/null &
job=$!
comes 300 trains && kill -9 "$(watchdog_of "$(cat rank)")" && kill -TERM "$(cat rank)" && comes 300 test -s status && grep -qx 75 status
result $? "a rank whose watchdog was killed ends as usual"
kill -9 $job
wait $job 2>/dev/null

export ISO_WATCHDOG=0
lose_rank heeding && survives 2
result $? "without ISO_WATCHDOG a launcher goes on"
kill -9 $job
wait $job 2>/dev/null
export ISO_WATCHDOG=1

# Pids can be chosen in a namespace of one's own, by root.
if unshare --pid --fork --mount-proc sh -c 'echo 99 >/proc/sys/kernel/ns_last_pid' 2>/dev/null; then
    (cd "$programs/.." && unshare --pid --fork --kill-child --mount-proc sh "$script" --reuse) >output 2>&1
    result $? "another process that gets the pid of the launcher is spared"
else
    echo "ok - another process that gets the pid of the launcher is spared # SKIP pids cannot be chosen here"
    echo skipped >>results
fi

print_plan
