#!/bin/sh
# Trains the CNN on real MNIST, lazily and blocking, and prints the results as TAP; takes a few minutes.
# usage: check_mnist.sh, in the build tree; uses MPIRUN, MPIRUN_FLAGS and ISO_TEST_MNIST, the folder of the files
set -u
export LC_ALL=C

root=$(cd "$(dirname "$0")/.." && pwd) || exit 1
. "$root/tests/test_env.sh"
launcher=${MPIRUN:-mpirun}
if [ "$launcher" = no ] || [ -z "${ISO_TEST_MNIST:-}" ]; then
    echo "1..0 # SKIP real MNIST or an MPI launcher is not here"
    exit 0
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

result() { # 0 for good, what should hold
    if [ "$1" = 0 ]; then
        echo "ok - $2"
    else
        echo "not ok - $2"
        sed 's/^/# /' "$work"/*.jsonl "$work/output"
    fi
}
train() { # sync mode
    # shellcheck disable=SC2086  # flags are several words
    timeout -k 5 900 "$launcher" ${MPIRUN_FLAGS---oversubscribe --bind-to none} -n 2 examples/train \
        --data "$ISO_TEST_MNIST" --model cnn --epochs 3 --sync "$1" --quiet --log "$work/$1.jsonl" \
        >>"$work/output" 2>&1 </dev/null
}
field() { # name, sync mode
    sed -n "s/.*\"event\":\"summary\".*\"$1\":\"\\{0,1\\}\\([^,\"}]*\\).*/\\1/p" "$work/$2.jsonl"
}

echo "1..3"
train lazy
result $? "trains on real MNIST"
accuracy=$(field test_accuracy lazy)
awk -v a="${accuracy:-0}" 'BEGIN { exit !(a >= 0.989) }'
result $? "reaches 98.9 % test accuracy after 3 epochs (${accuracy:-nothing})"
train blocking
[ -n "$(field param_hash lazy)" ] && [ "$(field param_hash lazy)" = "$(field param_hash blocking)" ]
result $? "blocking gives the same bits"
