#!/bin/sh
# SPDX-License-Identifier: MIT
# The study of docs/studies/exo-gym.md: do DDP, FedAvg and DiLoCo reach the loss that they reach in EXO Gym?
# usage: exo-gym.sh MNIST_FOLDER OUT_FOLDER, with iso-train (or the program that TRAIN names) in the PATH, and
# PYTHON with PyTorch and EXO Gym; the folder has MNIST's four files as .gz.
# NETWORKS (of mlp, cnn), SEEDS and MODES choose other runs than those of the study.
# It takes about half an hour on two cores. An interrupted run continues.
set -eu
data=$1 out=$2
study=$(cd "$(dirname "$0")" && pwd)/exo-gym.py
python=${PYTHON:-python3}
modes=${MODES:-ddp fedavg diloco diloco-copied}
export OMP_NUM_THREADS=1 # of each node; train has one thread per rank, too
mkdir -p "$out"

# DATA NETWORK MODE SEED FOLDER [OPTION]...: one run of Isotherm, unless only EXO Gym has the mode, or it was made
ours() {
    from=$1 network=$2 mode=$3 seed=$4 folder=$5
    shift 5
    [ ! -e "$folder/seconds" ] || return 0
    case $mode in
    ddp) sync=lazy ;;
    fedavg) sync='localsgd --period 20' ;;
    diloco) sync='diloco --period 20' ;;
    *) return 0 ;;
    esac
    mkdir -p "$folder"
    began=$(date +%s.%N)
    # shellcheck disable=SC2086 # sync is a mode with its options
    ${MPIRUN:-mpirun} --oversubscribe --bind-to none -n 4 "${TRAIN:-iso-train}" --data "$from" --model "$network" \
        --classes 10 --batch 256 --steps 150 --optimizer adamw --lr 3e-4 --weight-decay 1e-4 --warmup-lr-steps 100 \
        --schedule cosine --mean 0.1307 --std 0.3081 --seed "$seed" --quiet --overwrite --log "$folder/log.jsonl" \
        --sync $sync "$@"
    echo "$began $(date +%s.%N)" | awk '{ print $2 - $1 }' >"$folder/seconds"
}

# DATA NETWORK MODE SEED FOLDER: one run of EXO Gym, unless it was made
theirs() {
    fixed=
    [ ! -e "$5/run.json" ] || return 0
    rm -rf "$5"
    case $3 in *-fixed-order) fixed=--fixed-order ;; esac
    "$python" "$study" theirs "$1" "$5" --network "$2" --mode "${3%-fixed-order}" --seed "$4" $fixed \
        >"$5.log" 2>&1 || {
        tail -n 20 "$5.log" >&2
        exit 1
    }
}

for network in ${NETWORKS:-mlp}; do
    for seed in ${SEEDS:-1 2 3 4 5 6 7 8 9 10}; do
        for mode in $modes; do
            ours "$data" "$network" "$mode" "$seed" "$out/ours_${network}_${mode}_$seed"
            theirs "$data" "$network" "$mode" "$seed" "$out/theirs_${network}_${mode}_$seed"
        done
    done
done

# The learning rates of both, step by step.
set -- "$out"/theirs_*
while [ ! -e "$1/steps.json" ]; do shift; done
ours "$data" mlp ddp 1 "$out/rates" --eval-every 1 --test-limit 100
"$python" "$study" rates "$out/rates/log.jsonl" "$1"

# From the same parameters, with data that are the same on all ranks.
[ -e "$out/copies/init.safetensors" ] || "$python" "$study" copies "$data" "$out/copies"
for mode in $modes; do
    ours "$out/copies" mlp "$mode" 1 "$out/copies/ours_mlp_${mode}_1" --load "$out/copies/init.safetensors"
    theirs "$out/copies" mlp "$mode" 1 "$out/copies/theirs_mlp_${mode}_1"
done
"$python" "$study" runs "$out/copies" >"$out/exo-gym-copies.csv"
cut -d , -f 1,2,5 "$out/exo-gym-copies.csv"

"$python" "$study" runs "$out" >"$out/exo-gym.csv"
"$python" "$study" tables "$out/exo-gym.csv"
