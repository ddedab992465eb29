#!/bin/sh
# SPDX-License-Identifier: MIT
# Trains on MNIST with a GPU and prints the results as TAP: accuracy in every precision, the bits of lazy and blocking,
# checkpoints that move between GPU and CPU, a run that is killed and resumed.
# usage: gpu_train.sh MNIST, in the build tree; uses MPIRUN and MPIRUN_FLAGS
set -u
export LC_ALL=C

data=${1:?usage: gpu_train.sh MNIST}
launcher=${MPIRUN:-mpirun}
flags=${MPIRUN_FLAGS---oversubscribe --bind-to none}
device=${GPU_TRAIN_DEVICE:-cuda:0} # cpu tries the script, in f32 alone
low="--math bf16"
[ "$device" != cpu ] || low=
epochs=${GPU_TRAIN_EPOCHS:-3}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

train() { # ranks, log, arguments...
    ranks=$1 log=$work/$2
    shift 2
    rm -f "$log"
    # shellcheck disable=SC2086  # several words
    timeout -k 5 120 "$launcher" $flags -n "$ranks" bin/train --data "$data" --quiet --log "$log" --overwrite "$@" \
        >"$work/output" 2>&1 </dev/null
}
field() { # log, name: its last value
    [ ! -e "$work/$1" ] || sed -n "s/.*\"$2\":\"\{0,1\}\([0-9a-f.]*\).*/\1/p" "$work/$1" | tail -n 1
}
number=0
tell() { # status, text
    number=$((number + 1))
    [ "$1" = 0 ] || sed 's/^/# /' "$work/output"
    [ "$1" = 0 ] && echo "ok $number - $2" || echo "not ok $number - $2"
}
same() { # two values
    [ -n "$1" ] && [ "$1" = "$2" ]
}

learns() { # math
    start=$(date +%s.%N)
    train 1 "learn" --device "$device" --math "$1" --epochs "$epochs"
    took=$(echo "$(date +%s.%N) $start" | awk '{ printf "%.1f", $1 - $2 }')
    accuracy=$(field learn test_accuracy)
    echo "${accuracy:-0}" | awk '{ exit !($1 >= 0.989) }'
    tell $? "cnn reaches 98.9 % in $1: ${accuracy:-none} after $epochs epochs, $took s with start and evaluation"
}

lazy_is_blocking() { # math
    train 2 lazy --device "$device" --math "$1" --steps 300 && train 2 blocking --device "$device" --math "$1" \
        --steps 300 --sync blocking
    same "$(field lazy param_hash)" "$(field blocking param_hash)"
    tell $? "two ranks: lazy has the bits of blocking in $1: $(field lazy param_hash)"
}

checkpoint_moves() {
    train 1 cpu --model mlp --steps 200 --checkpoint "$work/cpu.safetensors" &&
        train 1 gpu --model mlp --device "$device" --steps 200 --load "$work/cpu.safetensors" --checkpoint "$work/gpu.safetensors" &&
        train 1 back --model mlp --steps 1 --lr 1e-12 --load "$work/gpu.safetensors"
    before=$(field gpu test_accuracy) after=$(field back test_accuracy)
    echo "${before:-0} ${after:-1}" | awk '{ exit !($1 > 0.9 && ($1 - $2) ^ 2 < 1e-6) }'
    tell $? "a checkpoint goes from CPU to GPU and back: accuracy $before on the GPU, $after on the CPU"
}

resumes() {
    # shellcheck disable=SC2086
    set -- --device "$device" $low --steps 4000 --checkpoint-every 400
    train 1 whole "$@" --checkpoint "$work/whole.safetensors"
    # shellcheck disable=SC2086
    "$launcher" $flags -n 1 bin/train --data "$data" --quiet "$@" --checkpoint "$work/cut.safetensors" \
        >"$work/output" 2>&1 </dev/null &
    pid=$!
    for _ in $(seq 600); do
        ! ls "$work"/cut*.step-* >/dev/null 2>&1 || break
        sleep 0.02
    done
    pkill -9 -P "$pid" 2>/dev/null || kill -9 "$pid"
    wait "$pid" 2>/dev/null
    ended=$?
    train 1 rest "$@" --checkpoint "$work/cut.safetensors" --resume "$work/cut.safetensors"
    same "$(field whole param_hash)" "$(field rest param_hash)" && [ "$ended" != 0 ]
    tell $? "a run that was killed (status $ended) and resumed ends with the same bits: $(field rest param_hash)"
}

echo "1..8"
for math in f32 tf32 bf16; do learns $math; done
for math in f32 tf32 bf16; do lazy_is_blocking $math; done
checkpoint_moves
resumes
