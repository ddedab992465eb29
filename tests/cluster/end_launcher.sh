#!/bin/sh
# SPDX-License-Identifier: MIT
# Starts a command with two ranks on the head of the cluster, where mpirun runs, and two on its first host, which is cut
# off while they train. Checks that the ranks end, and that mpirun, which waits for its daemon on that host, is ended
# by the watchdog; or without one, that a message says how to end it.
# usage: end_launcher.sh SECONDS DIRECTORY COMMAND...; SECONDS: of ISO_WATCHDOG, 0: none; train logs to DIRECTORY/log
set -u

seconds=$1 directory=$2
shift 2
export ISO_STALL_WARN=0 ISO_TIMEOUT=8 ISO_WATCHDOG="$seconds"

# shellcheck source=tests/cluster/wait_for.sh
. "$(dirname "$0")/wait_for.sh"
trains() { grep -q '"event":"eval"' "$directory/log" 2>/dev/null; }
gone() { ! kill -0 "$1" 2>/dev/null; }
told() { grep -q "$1" "$directory/said"; }

rm -f "$directory/log"
printf 'head slots=2\nnode1 slots=2\n' >/run/heads
mpirun --hostfile /run/heads -x ISO_TIMEOUT -x ISO_STALL_WARN -x ISO_WATCHDOG -n 4 "$@" >"$directory/said" 2>&1 &
launcher=$!
wait_for 60 trains || echo "the ranks do not train"
ip -n node1 link set eth0 down
status=0
wait_for 20 told 'the job ends here by MPI_Abort' || status=1
if [ "$seconds" = 0 ]; then
    told "if mpirun goes on, because it cannot reach a host, end it with: kill -9 $launcher (" || status=1
    sleep 8
    if gone "$launcher"; then
        echo "mpirun has ended by itself: nothing was tested"
        status=1
    fi
    kill -9 "$launcher"
    wait_for 3 gone "$launcher" || status=1
else
    told "if mpirun (pid $launcher) still runs $seconds s later, it is ended, too" || status=1
    wait_for $((seconds + 12)) gone "$launcher" || status=1
    wait_for 3 told "^train: mpirun (pid $launcher) still ran $seconds s after the end of a rank and was ended" || status=1
    sleep 1
    [ "$(grep -c "still ran" "$directory/said")" = 1 ] || status=1 # each rank has a watchdog
    pgrep -l iso-watchdog && status=1
fi
cat "$directory/said"
exit $status
