#!/bin/sh
# SPDX-License-Identifier: MIT
# Runs the tests of the gradient engine once more with sums by messages, as between nodes: on one node they go
# through shared memory.
# usage: check_messages.sh, in the build tree; uses MPIRUN and MPIRUN_FLAGS
set -eu
export LC_ALL=C ISO_NODE_COLLECTIVE=mpi

root=$(cd "$(dirname "$0")/.." && pwd)
results=$(mktemp)
trap 'rm -f "$results" "$results.one"' EXIT

[ -x tests/mpi/reducer.mpi ] && [ "${MPIRUN:-mpirun}" != no ] || {
    echo "1..0 # SKIP there are no MPI tests in this build"
    exit 0
}
for program in reducer data_parallel gradients used_layers no_sync; do
    sh "$root/tests/run_mpi.sh" "tests/mpi/$program.mpi" | sed '/^1\.\./d' >"$results.one"
    grep '^ok' "$results.one" | grep -qv '# SKIP' || echo "not ok - $program has tests that pass" >>"$results.one"
    tee -a "$results" <"$results.one"
done
echo "1..$(grep -cE '^(not )?ok' "$results")"
