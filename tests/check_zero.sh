#!/bin/sh
# SPDX-License-Identifier: MIT
# Trains random networks with and without ZeRO and compares the results to the last bit, as TAP.
# usage: check_zero.sh, in the build tree; uses MPIRUN and MPICC. SEEDS sets how many networks (24).
# Not -e: what fails here is a result, not the end.
set -u
export LC_ALL=C

root=$(cd "$(dirname "$0")/.." && pwd) || exit 1
. "$root/tests/test_env.sh"
launcher=${MPIRUN:-mpirun}
if [ "$launcher" = no ] || ! "$launcher" --oversubscribe -n 2 true 2>/dev/null; then
    echo "1..0 # SKIP this mpirun does not start two ranks here"
    exit 0
fi
build=$PWD
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

for zero in 0 1 2 3; do
    if ! "${MPICC:-mpicc}" -std=c11 -O1 -D_POSIX_C_SOURCE=200809L -DZERO=$zero -I"$root/include" -I"$build/include" \
        "$root/tests/same_bits/random_modules.c" -o "$work/zero$zero" -L"$build/.libs" -lisotherm \
        -Wl,-rpath,"$build/.libs" -lm; then
        echo "Bail out! random_modules.c does not compile"
        exit 1
    fi
done

# How ranks exchange with ZeRO; without it, sums are in shared memory, in the order of the ranks, and over several nodes
# in two levels.
train() { # 0 or the stage, ranks, environment, seed
    # shellcheck disable=SC2086  # the environment is several words
    env ISO_TIMEOUT=60 $3 timeout -k 5 120 "$launcher" --oversubscribe --bind-to none -n "$2" "$work/zero$1" "$4" \
        </dev/null >"$work/result$1" 2>"$work/errors$1"
}

tests=0
seeds=${SEEDS:-24}
for seed in $(seq "$seeds"); do
    tests=$((tests + 1))
    ranks=$((seed % 3 + 2))
    stage=$((seed / 8 % 3 + 1))
    plain="ISO_NODE_COLLECTIVE=shm"
    case $((seed % 4)) in
    0) ways="ISO_NODE_COLLECTIVE=shm" ;;
    1) ways="ISO_NODE_COLLECTIVE=mpi" ;;
    2) ways="ISO_RANKS_PER_NODE=2" plain="$plain $ways" ;;
    *) ways="ISO_NODE_COLLECTIVE=shm ISO_PROGRESS=off" ;;
    esac
    kernels=$([ $((seed / 4 % 2)) = 0 ] || echo " ISO_CPU_KERNELS=reference") # which random_modules.c cuts, too
    if train 0 $ranks "$plain$kernels" "$seed" && train $stage $ranks "$ways$kernels" "$seed" &&
        [ -s "$work/result0" ] && diff "$work/result0" "$work/result$stage" >"$work/difference"; then
        echo "ok - stage $stage, $ranks ranks, network $seed, $ways$kernels"
    else
        echo "not ok - stage $stage, $ranks ranks, network $seed, $ways$kernels"
        sed 's/^/# /' "$work/errors0" "$work/errors$stage" "$work/difference"
    fi
done
echo "1..$tests"
