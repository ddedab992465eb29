#!/bin/sh
# SPDX-License-Identifier: MIT
# The series of docs/growth.md: OUT/SERIES.csv has x, the kind of run, and y; OUT/SERIES.svg draws them. Prints the
# exponent of each kind: the slope of y over x on double logarithmic axes, by least squares, from the middle of the
# points on.
# usage: growth.sh OUT [SERIES...], in the build tree after "make bench"; needs valgrind, and gnuplot to draw
#        growth.sh OUT draw: only draws, and prints exponents
# Counts of instructions (by valgrind's callgrind) do not depend on what else the machine does. The times do: layers-time,
# buckets-time, parameters, ranks and start.
set -eu

[ $# -ge 1 ] || {
    sed -n 's/^# usage: /usage: /p' "$0" >&2
    exit 2
}
mkdir -p "$1"
out=$(cd "$1" && pwd)
shift
growth=$PWD/tests/bench/bench_growth
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
launch="${MPIRUN:-mpirun} ${MPIRUN_FLAGS---oversubscribe --bind-to none}"
all="layers layers-time parameters buckets buckets-time ranks start memory setup saving loading"
export OMP_NUM_THREADS=1 OMPI_MCA_btl=self,vader OMPI_MCA_pml=ob1

point() { echo "$1,$2,$3" >>"$out/$series.csv"; } # x, kind, y
# A column of the line of bench_growth: min_us 9, median_us 10, init_ms 12, setup_ms 13, live_mb 14, rss_mb 15.
column() { # number, ranks, options...
    column_number=$1
    column_ranks=$2
    shift 2
    # shellcheck disable=SC2086  # several words
    $launch -n "$column_ranks" "$growth" "$@" | cut -d, -f"$column_number"
}
# The smallest of five runs.
fastest() { # as column
    for _ in 1 2 3 4 5; do column "$@"; done | sort -g | head -n 1
}
instructions() { # options...
    (cd "$work" && valgrind --tool=callgrind --callgrind-out-file=/dev/null --toggle-collect=measured_part "$growth" "$@" \
        2>&1 >/dev/null | sed -n 's/.*Collected : //p')
}
# Of two ranks, those of the one that executes fewer in the library's own code for gradients.
own_instructions() { # options...
    rm -f "$work"/cost.*
    # shellcheck disable=SC2086  # several words
    $launch -n 2 valgrind --tool=callgrind --callgrind-out-file="$work/cost.%p" --toggle-collect=measured_part "$growth" \
        "$@" >/dev/null 2>&1
    for cost in "$work"/cost.*; do
        callgrind_annotate --auto=no --threshold=100 "$cost" | tr -d , |
            awk '/src\/(parallel|exchange)\// { sum += $1 } END { printf "%d\n", sum }'
    done | sort -n | head -n 1
}
half() { echo $(($1 / 2)); }

# ---- The series ----

layers() {
    for x in 1 3 10 30 100 300 1000; do
        point $x "one rank" "$(half "$(instructions --layers $x --warmup 2 --steps 2)")"
        point $x "with clipping" "$(half "$(instructions --layers $x --warmup 2 --steps 2 --clip)")"
    done
}
layers_time() {
    for x in 1 3 10 30 100 300 1000; do
        point $x "one rank" "$(column 9 1 --layers $x --steps 200)"
        point $x "two ranks" "$(column 9 2 --layers $x --steps 200)"
    done
}
# 10 layers of equal width.
parameters() {
    for x in 10000 100000 1000000 10000000 30000000 100000000 300000000; do
        width=$(awk -v n=$x 'BEGIN { printf "%d", sqrt(n / 10) }')
        point $x "one rank" "$(column 9 1 --layers 10 --width "$width" --steps 40 --warmup 2)"
        point $x "two ranks" "$(column 9 2 --layers 10 --width "$width" --steps 20 --warmup 10)"
    done
    width=10000 # 1e9
    point 1000000000 "one rank" "$(column 9 1 --layers 10 --width $width --steps 10 --warmup 0)"
}
# 1000 layers of 320 bytes.
buckets() {
    for x in 1 3 10 30 100 300 1000; do
        size=$(awk -v n=$x 'BEGIN { print n == 1000 ? 0 : 1000 * 320 / 1024 / n }')
        point $x lazy "$(half "$(own_instructions --layers 1000 --warmup 2 --steps 2 --bucket-kb "$size")")"
        point $x ZeRO "$(half "$(own_instructions --layers 1000 --warmup 2 --steps 2 --bucket-kb "$size" --set zero=yes)")"
    done
}
buckets_time() {
    for x in 1 3 10 30 100 300 1000; do
        size=$(awk -v n=$x 'BEGIN { print n == 1000 ? 0 : 1000 * 320 / 1024 / n }')
        point $x "shared memory" "$(column 9 2 --layers 1000 --steps 100 --bucket-kb "$size")"
        point $x messages "$(export ISO_NODE_COLLECTIVE=mpi && column 9 2 --layers 1000 --steps 100 --bucket-kb "$size")"
    done
}
ranks() {
    for x in 1 2 4 8 16; do
        point $x "shared memory" "$(column 10 $x --layers 10 --width 100 --steps 100)"
        point $x messages "$(export ISO_NODE_COLLECTIVE=mpi && column 10 $x --layers 10 --width 100 --steps 100)"
    done
}
start() {
    for x in 1 2 4 8 16; do
        point $x "MPI and communicator" "$(fastest 12 $x --layers 10 --steps 1 --warmup 0)"
        point $x "network and optimizer" "$(fastest 13 $x --layers 10 --steps 1 --warmup 0)"
    done
}
# Growth of the resident set, and what the library counts, per rank; 100 layers.
memory() {
    for x in 1000000 3000000 10000000 30000000; do
        width=$(awk -v n=$x 'BEGIN { printf "%d", sqrt(n / 100) }')
        while read -r name ranks options; do
            # shellcheck disable=SC2086  # several words
            line=$(export ISO_RANKS_PER_NODE=1 && column 14,15 "$ranks" --what memory --layers 100 --width "$width" --steps 2 \
                --warmup 4 $options </dev/null)
            point $x "$name" "${line#*,}"
            point $x "$name-counted" "${line%,*}"
        done <<END
lazy 2
lazy-adam 2 --optimizer adam
zero-adam 2 --optimizer adam --set zero=yes
daso 2 --sync daso --set warmup-steps=0,cooldown-steps=0,period=2,wait=1
diloco 2 --sync diloco --set period=2
streaming-diloco 2 --sync streaming-diloco --set period=4
END
    done
}
setup() {
    for x in 10 30 100 300 1000 3000 10000; do point $x "one rank" "$(instructions --what setup --layers $x)"; done
}
saving() {
    for x in 10 30 100 300 1000 3000; do
        point $x "one rank" "$(instructions --what save --layers $x --optimizer adam --warmup 1)"
    done
}
loading() {
    for x in 100 1000 10000 100000 1000000; do point $x "one rank" "$(instructions --what load --samples $x)"; done
}

# ---- What they tell ----

exponents() {
    cut -d, -f2 "$out/$series.csv" | sort -u | while read -r kind; do
        awk -F, -v kind="$kind" -v series="$series" '$2 == kind { x[n] = log($1); y[n++] = log($3) }
            END {
                for (i = int(n / 2); i < n; i++) { m++; sx += x[i]; sy += y[i]; xx += x[i] ^ 2; xy += x[i] * y[i] }
                if (m > 1) printf "%s, %s: %.2f\n", series, kind, (m * xy - sx * sy) / (m * xx - sx ^ 2)
            }' "$out/$series.csv"
    done
}
labels() {
    case $series in
    layers | buckets | setup | saving | loading) y=instructions ;;
    memory) y="MB per rank" ;;
    start) y=ms ;;
    *) y=us ;;
    esac
    case $series in
    layers* | setup | saving) x=layers ;;
    buckets*) x=buckets ;;
    parameters | memory) x=parameters ;;
    loading) x=samples ;;
    *) x=ranks ;;
    esac
}
draw() {
    curves=
    labels
    cut -d, -f2 "$out/$series.csv" | sort -u >"$work/kinds"
    while read -r kind; do
        case $kind in *-counted) continue ;; esac
        awk -F, -v kind="$kind" '$2 == kind { print $1, $3 }' "$out/$series.csv" >"$work/$kind"
        curves="$curves${curves:+, }'$work/$kind' with linespoints title '$kind'"
    done <"$work/kinds"
    gnuplot <<END
set terminal svg size 560,360 font 'sans,12' background rgb 'white'
set output '$out/$series.svg'
set logscale xy
set format xy '10^{%T}'
set xlabel '$x'
set ylabel '$y'
set key left top
set grid
plot $curves
END
}

make=yes
[ "${1:-}" != draw ] || make=no
[ "$make" = yes ] && [ $# -gt 0 ] && all=$*
for series in $all; do
    if [ $make = yes ]; then
        rm -f "$out/$series.csv"
        "$(echo "$series" | tr - _)"
    fi
    [ -s "$out/$series.csv" ] || continue
    exponents
    if command -v gnuplot >/dev/null; then draw; fi
done
