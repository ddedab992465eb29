#!/bin/sh
# SPDX-License-Identifier: MIT
# Has elastic start a command on the three hosts of the cluster, cuts the third one off, and checks that the run goes on
# from its saved state on the other two.
# usage: lose_host.sh DIRECTORY COMMAND...; train saves to DIRECTORY/state and logs to DIRECTORY/log
set -u

directory=$1
shift

# shellcheck source=tests/cluster/wait_for.sh
. "$(dirname "$0")/wait_for.sh"
gone() { ! kill -0 "$1" 2>/dev/null; }
is_saved() { [ -n "$(find "$directory" -name 'state.step-????????????')" ]; }
goes_on() { grep -q '"event":"resume",.*"old_ranks":3,' "$directory/log" && tail -n 1 "$directory/log" | grep -q '"event":"eval"'; }
told() { grep -qF "$1" "$directory/said"; }

rm -f "$directory"/log "$directory"/state*
printf 'node1\nnode2\nnode3\n' >"$directory/hosts"
# The agent of this cluster gets to a host that no message reaches.
# shellcheck disable=SC2016  # the inner shell's
bin/elastic --hostfile "$directory/hosts" --probe "sh -c 'ip -n \$0 link show dev eth0 up | grep -q eth0'" --every 1 --lost 2 \
    --global-batch 48 --min-ranks 2 -- "$@" --batch '{batch}' --checkpoint "$directory/state" --checkpoint-every 20 \
    --resume auto --log "$directory/log" >"$directory/said" 2>&1 &
elastic=$!
status=1
if wait_for 40 is_saved && ip -n node3 link set eth0 down && wait_for 40 goes_on; then
    told 'elastic: node3 has not answered 2 checks in a row: ends mpirun' &&
        told 'elastic: starts on 2 ranks: node1:1,node2:1' && status=0
fi
kill "$elastic"
wait_for 15 gone "$elastic" || status=1
cat "$directory/said"
exit $status
