#!/bin/sh
# SPDX-License-Identifier: MIT
# Trains the CNN on real MNIST, lazily and blocking, and prints the results as TAP; takes a few minutes.
# usage: check_mnist.sh, in the build tree; uses MPIRUN, MPIRUN_FLAGS and ISO_TEST_MNIST, the folder of the files
set -u

root=$(cd "$(dirname "$0")/.." && pwd) || exit 1
# shellcheck source=tests/program_tests.sh
. "$root/tests/program_tests.sh"
if [ "$launcher" = no ] || [ -z "${ISO_TEST_MNIST:-}" ]; then
    echo "1..0 # SKIP real MNIST or an MPI launcher is not here"
    exit 0
fi
data=$(cd "$ISO_TEST_MNIST" && pwd) || exit 1
enter_work
limit=900
shown="*.jsonl stdout stderr"

train_by() { # sync mode, length
    run 2 "$train" --data "$data" --model cnn "$2" "$3" --sync "$1" --quiet --overwrite --log "$1.jsonl"
}

echo "1..3"
train_by lazy --epochs 3
result "$status" "trains on real MNIST"
accuracy=$(summary_field test_accuracy lazy.jsonl)
awk -v a="${accuracy:-0}" 'BEGIN { exit !(a >= 0.989) }'
result $? "reaches 98.9 % test accuracy after 3 epochs (${accuracy:-nothing})"
train_by lazy --steps 100
train_by blocking --steps 100
[ -n "$(summary_field param_hash lazy.jsonl)" ] && [ "$(summary_field param_hash lazy.jsonl)" = "$(summary_field param_hash blocking.jsonl)" ]
result $? "blocking gives the same bits"
