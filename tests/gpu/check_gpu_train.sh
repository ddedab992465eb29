#!/bin/sh
# SPDX-License-Identifier: MIT
# Trains on a GPU, two ranks that share one, and prints the results as TAP.
# usage: check_gpu_train.sh, in the build tree; uses MPIRUN and MPIRUN_FLAGS
set -u
export LC_ALL=C

root=$(cd "$(dirname "$0")/../.." && pwd) || exit 1
. "$root/tests/test_env.sh"
launcher=${MPIRUN:-mpirun}
flags=${MPIRUN_FLAGS---oversubscribe --bind-to none}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

train() { # log, arguments...
    log=$work/$1
    rm -f "$log"
    shift
    # shellcheck disable=SC2086  # several words
    timeout -k 5 120 "$launcher" $flags -n 2 bin/train --device cuda:0 --model mlp --batch 32 --steps 4 \
        --quiet --log "$log" "$@" >"$work/output" 2>&1 </dev/null
}
hash_of() { # log
    sed -n 's/.*"param_hash":"\([0-9a-f]*\)".*/\1/p' "$work/$1"
}

if [ "$launcher" = no ]; then
    echo "1..0 # SKIP configure found no MPI launcher"
    exit 0
fi
if ! train probe; then
    echo "1..0 # SKIP $(grep -m 1 '^train: ' "$work/output" || echo 'no GPU can be used')"
    exit 0
fi
echo "1..7"
for options in "--math f32" "--math tf32" "--math bf16" "--math bf16 --accumulate 2" \
    "--autocast f16 --grad-scaler" "--dtype bf16" "--dtype f16 --optimizer adam --zero"; do
    # shellcheck disable=SC2086  # several words
    if train lazy $options && train blocking --sync blocking $options && [ -n "$(hash_of lazy)" ] &&
        [ "$(hash_of lazy)" = "$(hash_of blocking)" ]; then
        echo "ok - lazy gives the bits of blocking with $options"
    else
        echo "not ok - lazy gives the bits of blocking with $options"
        sed 's/^/# /' "$work/output"
    fi
done
