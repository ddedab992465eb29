#!/bin/sh
# SPDX-License-Identifier: MIT
# Draws what runs_scale.sh has simulated: the efficiency (the time of a step without exchange, divided by that of the
# step) of each mode against the number of ranks, one rank a host.
# usage: plot_scale.sh FILE MODEL MBIT/S >PICTURE.svg; needs gnuplot
set -eu

[ $# -eq 3 ] || {
    sed -n 's/^# usage: /usage: /p' "$0" >&2
    exit 2
}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
[ -r "$1" ] || {
    echo "plot_scale.sh: cannot read $1" >&2
    exit 1
}
alone=$(sed -n "s/^{\"run\": \"$2 blocking - 1 1 1000\".*\"step_ms\": \([0-9.]*\).*/\1/p" "$1")
[ -n "$alone" ] || {
    echo "plot_scale.sh: $1 has no run of $2 on one rank: add it by runs_scale.sh BUILD TABLES $1 $2 1 1 1000 blocking" >&2
    exit 1
}
curves=
for sync in blocking lazy localsgd diloco daso gossip; do
    grep -F "\"run\": \"$2 $sync " "$1" | grep -F " 1 $3\"" |
        sed -n 's/.*"ranks": \([0-9]*\).*"step_ms": \([0-9.]*\).*/\1 \2/p' | sort -n |
        awk -v alone="$alone" '{ print $1, alone / $2 }' >"$work/$sync"
    [ ! -s "$work/$sync" ] || curves="$curves${curves:+, }'$work/$sync' with linespoints title '$sync'"
done
[ -n "$curves" ] || {
    echo "plot_scale.sh: $1 has no runs of $2 at $3 Mbit/s with one rank a host" >&2
    exit 1
}
gnuplot <<END
set terminal svg size 640,400 font 'sans,12' background rgb 'white'
set logscale x 2
set yrange [0:1.05]
set xlabel 'ranks, one a host'
set ylabel 'efficiency'
set title '$2, $3 Mbit/s'
set key outside right
set grid
plot $curves
END
