#!/bin/sh
# SPDX-License-Identifier: MIT
# Trains examples/two_inputs.c, a network of two inputs, serial and data-parallel, and prints the results as TAP.
# usage: check_two_inputs.sh, in the build tree; uses MPIRUN and MPIRUN_FLAGS
# Not -e: what fails here is a result, not the end.
set -u

root=$(cd "$(dirname "$0")/.." && pwd) || exit 1
# shellcheck source=tests/program_tests.sh
. "$root/tests/program_tests.sh"
need_launcher
limit=120
enter_work

evaluation() { sed -n 's/^evaluation: error \([0-9.]*\)$/\1/p' stdout; }
last_error() { sed -n 's/^epoch 12: error \([0-9.]*\)$/\1/p' stdout; }

# What is learned deviates from 0 by 1.2. Global batches have the same samples on any number of ranks, so errors agree
# to rounding.
first=
for ranks in 1 2 3; do
    run $ranks "$programs/two-inputs"
    error=$(last_error)
    first=${first:-$error}
    cp stdout lazy
    [ "$status" = 0 ] && [ ! -s stderr ] && awk -v e="${error:-9}" 'BEGIN { exit !(e < 0.05) }'
    result $? "$ranks ranks learn from both inputs (error ${error:-unknown})"
    awk -v a="${error:-9}" -v b="${first:-0}" 'BEGIN { exit !((a - b) ^ 2 < 0.0005 ^ 2) }'
    result $? "$ranks ranks have the error of one rank with the whole batch"
    # The evaluation sees both inputs of the same samples, after the epoch's updates.
    awk -v a="$(evaluation)" -v b="${error:-9}" 'BEGIN { exit !(a > 0 && a < 1.2 * b) }'
    result $? "$ranks ranks evaluate with both inputs"
    run $ranks "$programs/two-inputs" blocking
    [ "$status" = 0 ] && grep -q '^parameters [0-9a-f]*$' lazy && cmp -s stdout lazy
    result $? "$ranks ranks have the same bits with blocking exchanges"
done

print_plan
