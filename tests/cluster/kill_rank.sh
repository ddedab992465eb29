#!/bin/sh
# SPDX-License-Identifier: MIT
# Starts a command on a cluster, kills its rank 1 in mid-run, and checks that the rest ends by itself in time.
# usage: kill_rank.sh DIRECTORY MPIRUN...; each rank writes its process id to DIRECTORY/pid.RANK
set -u

directory=$1
shift
limit=10 # seconds

# shellcheck source=tests/cluster/wait_for.sh
. "$(dirname "$0")/wait_for.sh"
ranks_run() { [ -s "$directory/pid.0" ] && [ -s "$directory/pid.1" ]; }
gone() { ! kill -0 "$1" 2>/dev/null; }

rm -f "$directory"/pid.*
"$@" &
launcher=$!
wait_for 20 ranks_run || {
    echo "the ranks did not start"
    exit 1
}
sleep 3 # they train
rank0=$(cat "$directory/pid.0")
if gone "$rank0"; then
    echo "the ranks ended before one was killed"
    exit 1
fi
kill -KILL "$(cat "$directory/pid.1")"
if ! wait_for "$limit" gone "$rank0"; then
    echo "rank 0 still runs $limit s after rank 1 was killed"
    exit 1
fi
if ! wait_for "$limit" gone "$launcher"; then
    echo "mpirun still runs $limit s after rank 1 was killed"
    exit 1
fi
if wait "$launcher"; then
    echo "mpirun reports success though a rank was killed"
    exit 1
fi
