#!/bin/sh
# SPDX-License-Identifier: MIT
# Starts a command on three hosts of the cluster, two ranks each; then stops a rank of the third host, or cuts it off,
# and checks that a warning and the error at the time-out name it.
# usage: stall_host.sh stop|cut|loss DIRECTORY MPIRUN...; each rank writes its process id to DIRECTORY/pid.RANK, and
# train logs to DIRECTORY/log
set -u

how=$1 directory=$2
shift 2
export ISO_STALL_WARN=2 ISO_TIMEOUT=6
case $how in
stop) told='rank 5 on node3 is stopped by a signal' ;;
*) told='node3 does not answer (ranks 2, 5): it cannot be reached, or is stopped' ;;
esac

# shellcheck source=tests/cluster/wait_for.sh
. "$(dirname "$0")/wait_for.sh"
trains() { [ -s "$directory/pid.5" ] && grep -q '"event":"eval"' "$directory/log" 2>/dev/null; }
names() { # pattern before the name
    grep -qF "$told" "$directory/said" && grep -F "$told" "$directory/said" | grep -q "$1"
}

rm -f "$directory"/pid.* "$directory/log"
"$@" >"$directory/said" 2>&1 &
launcher=$!
wait_for 60 trains || echo "the ranks do not train"
case $how in
stop) kill -STOP "$(cat "$directory/pid.5")" ;;
cut) ip -n node3 link set eth0 down ;;
loss) ip link set port3 nomaster ;; # its link is up, and leads nowhere
esac
status=0
wait_for 12 names 'has waited .*ISO_STALL_WARN' || status=1
wait_for 16 names 'waited 6 s .*ISO_TIMEOUT' || status=1
cat "$directory/said"
kill "$launcher" # mpirun waits for the daemon of the host that it cannot reach
exit $status
