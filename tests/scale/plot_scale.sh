#!/bin/sh
# SPDX-License-Identifier: MIT
# Draws what runs_scale.sh has simulated: the efficiency (the time of a step's kernels, divided by that of the step) of
# each mode against the number of ranks, one rank a host.
# usage: plot_scale.sh FILE TABLES MODEL MBIT/S >PICTURE.svg; needs gnuplot
set -eu

[ $# -eq 4 ] || {
    sed -n 's/^# usage: /usage: /p' "$0" >&2
    exit 2
}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
kernels=$(awk '{ sum += $4 } END { print sum }' "$2/$3-64.times")
curves=
for sync in blocking lazy localsgd diloco daso gossip; do
    grep -F "\"run\": \"$3 $sync " "$1" | grep -F " 1 $4\"" |
        sed -n 's/.*"ranks": \([0-9]*\).*"step_ms": \([0-9.]*\).*/\1 \2/p' | sort -n |
        awk -v kernels="$kernels" '{ print $1, kernels / $2 }' >"$work/$sync"
    [ ! -s "$work/$sync" ] || curves="$curves${curves:+, }'$work/$sync' with linespoints title '$sync'"
done
[ -n "$curves" ] || {
    echo "plot_scale.sh: $1 has no runs of $3 at $4 Mbit/s with one rank a host" >&2
    exit 1
}
gnuplot <<END
set terminal svg size 640,400 font 'sans,12' background rgb 'white'
set logscale x 2
set yrange [0:1.05]
set xlabel 'ranks, one a host'
set ylabel 'efficiency'
set title '$3, $4 Mbit/s'
set key outside right
set grid
plot $curves
END
