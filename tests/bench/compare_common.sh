# SPDX-License-Identifier: MIT
# Sourced by the scripts that compare step times with other libraries': checks what they need, takes medians.
# Sets $here, $root, $work (a folder that is removed at the end) and $python. PEER_ENV holds settings of the environment
# for the other libraries alone, for example glibc's that keep freed memory, as they allocate in each step:
# PEER_ENV="MALLOC_MMAP_THRESHOLD_=1000000000 MALLOC_TRIM_THRESHOLD_=1000000000 MALLOC_TOP_PAD_=200000000"
# shellcheck shell=sh disable=SC2034

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
# shellcheck source=../test_env.sh
. "$root/tests/test_env.sh"
python=${PYTHON:-/usr/bin/python3}

[ -x tests/bench/bench_step ] || {
    echo "error: tests/bench/bench_step is missing here: run \"make bench\" in the build tree first" >&2
    exit 1
}
"$python" -c 'import torch' 2>/dev/null || {
    echo "error: $python has no torch (Debian: apt-get install python3-torch)" >&2
    exit 77
}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

field() { # name, file: its values, in increasing order
    sed -n "s/.*\"$1\": \"\\{0,1\\}\\([^,\"}]*\\).*/\\1/p" "$2" | sort -g
}
median() { # lines
    awk '{ value[NR] = $1 } END { print NR % 2 ? value[(NR + 1) / 2] : (value[NR / 2] + value[NR / 2 + 1]) / 2 }'
}
p50() { # file: the median of its lines' medians
    field step_ms_p50 "$1" | median
}
peer_of() { # file: whose times these are, in the setting that won most often
    setting=$(field setting "$1" | sort | uniq -c | sort -rn | awk 'NR == 1 { print $2 }')
    echo "$(field peer "$1" | head -n 1) ($setting)"
}
ratio() { # ours, theirs
    awk -v a="$1" -v b="$2" 'BEGIN { printf "%.2f", a / b }'
}
