#!/bin/sh
# SPDX-License-Identifier: MIT
# The study of docs/studies/adaptive-period.md: is an adaptive period as good as the best fixed one?
# usage: adaptive-period.sh MNIST_FOLDER OUT_FOLDER, from the top of the build tree; needs root, and PYTHON with torch
# (see tests/bench/time_to_accuracy.sh). It takes about 35 minutes on two cores. RATES: of the links (all three).
set -eu
data=$1 out=$2
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$out"

runs_at() { # rate, fixed periods
    rate=$1 periods=$2
    set -- "adaptive: --sync daso --policy adaptive"
    for period in $periods; do set -- "$@" "$period: --sync daso --period $period"; done
    sh "$here/../../tests/bench/time_to_accuracy.sh" --data "$data" --rate "$rate" --seeds '1 2 3' --eval-every 25 \
        --until-target --keep "$out/$rate" "$@" | tee "$out/$rate.txt"
}
for rate in ${RATES:-1gbit 100mbit 10mbit}; do
    case $rate in
    1gbit) runs_at "$rate" '4 8 16 32 64' ;;
    100mbit) runs_at "$rate" '16 32 64' ;;
    *) runs_at "$rate" '64 128' ;;
    esac
done
