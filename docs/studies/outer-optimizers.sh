#!/bin/sh
# SPDX-License-Identifier: MIT
# The study of docs/studies/outer-optimizers.md: does an outer optimizer raise the period that post-local SGD can use?
# usage: outer-optimizers.sh MNIST_FOLDER OUT_FOLDER, with iso-sweep (or the program that SWEEP names) in the PATH
# It takes about ten minutes on two cores. An interrupted run continues.
set -eu
data=$1 out=$2
post='--sync postlocal --warmup 0.5 --period 4,16,64,256'
${MPIRUN:-mpirun} --oversubscribe -n 4 "${SWEEP:-iso-sweep}" --out "$out" --data "$data" --model mlp --seeds 1,2,3 \
    --target 0.98 --eval-every 100000 -- \
    "lazy: --sync lazy --epochs 4 --shift 2" \
    "mean: $post --epochs 4 --shift 2" \
    "slowmo: $post --outer slowmo --epochs 4 --shift 2" \
    "nesterov: $post --outer nesterov --epochs 4 --shift 2" \
    "pull: $post --outer pull --epochs 4 --shift 2"
