#!/bin/sh
# SPDX-License-Identifier: MIT
# Simulates ranks under SimGrid and compares with real ranks and with the rate of the links, as TAP.
# usage: check_scale.sh, in the build tree after "make bench"; uses MPIRUN. Skipped unless ISO_TEST_SCALE names a folder
#        in which tests/scale/build_scale.sh has built.
# Not -e: what fails here is a result, not the end.
set -u

root=$(cd "$(dirname "$0")/.." && pwd) || exit 1
. "$root/tests/program_tests.sh"
need_launcher
if [ ! -x "${ISO_TEST_SCALE:-none}/bench_scale_simulated" ] || ! command -v smpirun >/dev/null; then
    echo "1..0 # SKIP ISO_TEST_SCALE names no folder in which tests/scale/build_scale.sh has built"
    exit 0
fi
if [ ! -x tests/bench/bench_scale ]; then
    echo "1..0 # SKIP tests/bench/bench_scale is not built: make bench"
    exit 0
fi
simulated=$(cd "$ISO_TEST_SCALE" && pwd)
real=$PWD/tests/bench/bench_scale
enter_work

simulate() { # hosts, ranks per host, Mbit/s, options of bench_scale...
    hosts=$1 each=$2 mbit=$3
    shift 3
    run_alone sh "$root/tests/scale/simulate.sh" -b "$simulated" -n "$hosts" -p "$each" -r "$mbit" -- "$@"
}
value_of() { # key: of the line in stdout
    sed -n "s/.*\"$1\": \"\\{0,1\\}\\([^,\"}]*\\).*/\\1/p" stdout
}

for sync in blocking lazy; do
    run 3 "$real" --sync "$sync" --batch 8 --steps 3 --warmup 1
    expected=$(value_of hash)
    simulate 3 1 1000 --sync "$sync" --batch 8 --steps 3 --warmup 1
    [ -n "$expected" ] && [ "$(value_of hash)" = "$expected" ]
    result $? "three simulated ranks have the parameters of three real ones ($sync)"
done

# Kernels of 2 ms in all. The bytes of a step are those of both ranks.
printf '%s\n' 'linear_forward 51380224 1937408 1' 'linear_backward_params 51380224 1937408 1' >table
simulate 2 1 100 --sync blocking --device model:table --steps 4 --warmup 2
payload=$(sed -n 's/^payload=\([0-9.]*\).*/\1/p' "$root/tests/scale/costs")
awk -v ms="$(value_of step_ms)" -v bytes="$(value_of sent_bytes_per_step)" -v payload="$payload" 'BEGIN {
    wire = bytes / 2 * 8 / (100e6 * payload) * 1e3
    exit !(ms > wire + 2 && ms < 1.02 * (wire + 4)) }'
result $? "a blocking step takes the time of its kernels and of its bytes on the link"

# The forward needs the pieces of a weight before the last rank falls behind, so that nothing hides their exchange.
echo "rest 0 0 0" >no_kernels
simulate 2 1 1000 --model cnn --sync lazy --slow-ms 20 --device model:no_kernels --steps 4 --warmup 12
awk -v ms="$(value_of step_ms)" 'BEGIN { exit !(ms > 20 + 38 && ms < 20 + 43) }'
result $? "a simulated forward waits for the pieces of a weight"

# A table that was cut off, or has anything else in it, is refused with the number of the line.
bad_table() { # name, sentence
    run_alone "$real" --sync lazy --steps 1 --warmup 0 --device "model:$1"
    has_failed && one_line_of_error "$2"
}
one_line_of_error() { # the only line of stderr that is no message of the launcher
    grep -q "^error: $1: make the table with bench_step --breakdown --table$" stderr
}
good=0
sed '2s/ [^ ]*$//' table >short
printf 'linear_forward 123' >stump
{ cat table && echo garbage; } >mixed
{ cat table && echo 'sgd 0 100 0.1 0.2'; } >longer
echo 'sgd 0 100 -5' >negative
: >empty
not='it is no kernel with operations, bytes and ms'
bad_table short "short, line 2: $not" && bad_table stump "stump, line 1: $not" && bad_table mixed "mixed, line 3: $not" &&
    bad_table longer "longer, line 3: $not" && bad_table negative "negative, line 1: its time is no number of ms" &&
    bad_table empty "empty: the table is empty" || good=1
simulate 2 1 1000 --sync lazy --steps 1 --warmup 0 --device model:mixed
has_failed && one_line_of_error "mixed, line 3: $not" && ! grep -q Deadlock stderr || good=1
result $good "tables that are damaged are refused"

for number in 1 2; do
    simulate 3 2 1000 --sync daso --set warmup-steps=2,cooldown-steps=0 --device model:table --steps 16 --warmup 8
    cp stdout "line$number"
done
[ -s line1 ] && cmp -s line1 line2
result $? "a simulation can be repeated exactly"
print_plan
