#!/bin/sh
# SPDX-License-Identifier: MIT
# The study of docs/studies/bytes-to-target.md: how few bytes, and how short a time, take a CNN to 98.5 % on MNIST?
# usage: bytes-to-target.sh MNIST_FOLDER OUT_FOLDER, from the top of the build tree; needs root, and PYTHON with torch
# It takes about 80 minutes on two cores. Sweeps that were interrupted continue.
set -eu
data=$1 out=$2
here=$(cd "$(dirname "$0")" && pwd)
tests=$here/../../tests
mkdir -p "$out"

# 10 seeds of both ways, whose exchange is counted for one rank a host. Links without limit: bits do not depend on them.
for hosts in 2 4; do
    sh "$tests/cluster/with_cluster.sh" -n "$hosts" -r none -t 7200 -- mpirun -n "$hosts" bin/sweep \
        --out "$out/seeds-$hosts" --data "$data" --model cnn --epochs 3 --seeds 1,2,3,4,5,6,7,8,9,10 \
        --target 0.985 --eval-every 25 -- \
        "lazy: --sync lazy" "local: --sync localsgd --period 32 --wire int8"
done

# Another way, tried on 4 hosts alone.
sh "$tests/cluster/with_cluster.sh" -n 4 -r none -t 7200 -- mpirun -n 4 bin/sweep \
    --out "$out/seeds-4-period-16" --data "$data" --model cnn --epochs 3 --seeds 1,2,3,4,5,6,7,8,9,10 \
    --target 0.985 --eval-every 25 -- "local16: --sync localsgd --period 16 --wire int4"

# Time at 100 Mbit/s until the target, in turns with PyTorch's DDP.
for hosts in 2 4; do
    sh "$tests/bench/time_to_accuracy.sh" --data "$data" --hosts "$hosts" --rate 100mbit --seeds '1 2 3' \
        --eval-every 25 --until-target --keep "$out/time-$hosts" \
        ddp "local: --sync localsgd --period 32 --wire int8" | tee "$out/time-$hosts.txt"
done
