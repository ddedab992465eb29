#!/bin/sh
# SPDX-License-Identifier: MIT
# Runs the emulator's own test, a program, and prints its result as TAP.
# usage: check_emulator.sh, in a build tree that was configured --with-cuda=emulated
echo 1..1
if said=$(tests/cuda_emulator/emulator_test 2>&1); then
    echo "ok 1 - the emulator does what CUDA documents"
else
    echo "$said" | sed 's/^/# /'
    echo "not ok 1 - the emulator does what CUDA documents"
fi
