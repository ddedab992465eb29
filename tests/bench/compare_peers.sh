#!/bin/sh
# Compares the step time of bench_step with PyTorch's, taking turns, on one rank and one thread.
# usage: compare_peers.sh [PAIRS (5)], from the top of the build tree after "make bench"; PYTHON names a
#        Python that has torch (/usr/bin/python3, Debian: apt-get install python3-torch)
set -eu

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
. "$root/tests/test_env.sh"
pairs=${1:-5}
python=${PYTHON:-/usr/bin/python3}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

[ -x tests/bench/bench_step ] || {
    echo "error: tests/bench/bench_step is missing here: run \"make bench\" in the build tree first" >&2
    exit 1
}
"$python" -c 'import torch' 2>/dev/null || {
    echo "error: $python has no torch (Debian: apt-get install python3-torch)" >&2
    exit 77
}

field() { # name, file: its values, in increasing order
    sed -n "s/.*\"$1\": \"\\{0,1\\}\\([^,\"}]*\\).*/\\1/p" "$2" | sort -g
}
median() { # lines
    awk '{ value[NR] = $1 } END { print NR % 2 ? value[(NR + 1) / 2] : (value[NR / 2] + value[NR / 2 + 1]) / 2 }'
}

compare() { # model, batch, timed steps, others before them
    : >"$work/ours"
    : >"$work/theirs"
    i=0
    while [ "$i" -lt "$pairs" ]; do
        tests/bench/bench_step --model "$1" --batch "$2" --steps "$3" --warmup "$4" >>"$work/ours"
        "$python" "$here/peers/step_pytorch.py" --model "$1" --batch "$2" --steps "$3" --warmup "$4" \
            >>"$work/theirs"
        i=$((i + 1))
    done
    ours=$(field step_ms_p50 "$work/ours" | median)
    theirs=$(field step_ms_p50 "$work/theirs" | median)
    ratio=$(awk -v a="$ours" -v b="$theirs" 'BEGIN { printf "%.2f", a / b }')
    echo "$1, batch $2: Isotherm $ours ms, $(field peer "$work/theirs" | head -n 1)" \
        "($(field setting "$work/theirs" | sort | uniq -c | sort -rn | awk 'NR == 1 { print $2 }')) $theirs ms," \
        "ratio $ratio; $pairs turns each, median of medians"
}

compare cnn 64 30 10
compare mlp 64 30 10
compare resnet18 64 5 2
