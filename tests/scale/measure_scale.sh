#!/bin/sh
# SPDX-License-Identifier: MIT
# Measures the cases of the file cases on emulated hosts, in turn, and compares with predictions.
# usage: measure_scale.sh TABLES PREDICTIONS [ROUNDS (3)], from the top of the build tree after "make bench"; needs root
#        and a quiet machine with 2 cores for about 4 minutes a round. TABLES: the folder of tables.sh. PREDICTIONS:
#        what predict_scale.sh has printed. Prints a line for each case: name, predicted and measured ms (median of the
#        rounds), error. ROWS: a file that gets the time of each run. SCALE_CASES: another file of cases. A run is
#        repeated, twice at most, if other processes have taken more than 10 % of a core meanwhile.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
[ $# -ge 2 ] || {
    sed -n '/^# usage: /,/^set -eu/s/^# \{0,1\}//p' "$0" | grep -v '^set' >&2
    exit 2
}
tables=$(cd "$1" && pwd)
predictions=$2 rounds=${3:-3}
[ -x tests/bench/bench_scale ] || {
    echo "error: tests/bench/bench_scale is missing here: run \"make bench\" in the build tree first" >&2
    exit 1
}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 143' INT TERM HUP

# Ticks of the processes outside of the emulated hosts, but for this one, whose children are the hosts.
others() {
    own=$(readlink /proc/self/ns/pid)
    find /proc -maxdepth 3 -path '/proc/[0-9]*/ns/pid' -printf '%h %l\n' 2>/dev/null |
        awk -v own="$own" -v self="/proc/$$/ns" '$2 == own && $1 != self { sub("/ns$", "/stat", $1); print $1 }' |
        xargs cat 2>/dev/null | sed 's/^.*) //' | awk '$2 != 2 { sum += $12 + $13 + $14 + $15 } END { print sum }'
}

run_case() { # name, hosts, Mbit/s, options...
    name=$1 hosts=$2 mbit=$3
    shift 3
    for try in 1 2 3; do
        before=$(others) start=$(date +%s%N)
        sh "$here/../cluster/with_cluster.sh" -n "$hosts" -r "${mbit}mbit" -t 300 -- mpirun -n "$hosts" \
            tests/bench/bench_scale "$@" </dev/null 2>"$work/errors" >"$work/output" || {
            echo "error: $name: $(cat "$work/errors")" >&2
            return 0
        }
        taken=$((($(others) - before) * 1000000000 / ($(date +%s%N) - start))) # %: a tick is 10 ms
        [ "$taken" -gt 10 ] || break
        echo "$name: other processes took $taken % of a core (try $try)" >&2
    done
    sed -n "s/.*\"step_ms\": \\([0-9.]*\\).*/$name \\1/p" "$work/output" >>"$work/rows"
}

measure_case() { # as the columns of the file
    name=$1 hosts=$2 mbit=$3 settings=${11}
    device=cpu
    [ "$6" = real ] || device=model:$tables/$4-$5.times
    set -- --model "$4" --batch "$5" --device "$device" --slow-ms "$7" --steps "$8" --warmup "$9" --sync "${10}"
    case $settings in
    -) ;;
    *wait*) set -- "$@" --set "$settings,warmup-steps=0,cooldown-steps=0" ;;
    *) set -- "$@" --set "$settings" ;;
    esac
    run_case "$name" "$hosts" "$mbit" "$@"
}

: >"$work/rows"
for round in $(seq "$rounds"); do
    grep -v '^#' "${SCALE_CASES:-$here/cases}" >"$work/cases"
    while read -r line; do
        # shellcheck disable=SC2086  # columns
        measure_case $line
    done <"$work/cases"
    echo "round $round of $rounds is over" >&2
done
cp "$work/rows" "${ROWS:-/dev/null}"
sort -k1,1 -k2,2g "$work/rows" | awk -v predictions="$predictions" '
    BEGIN {
        while ((getline line < predictions) > 0) {
            split(line, part)
            predicted[part[1]] = part[2]
        }
    }
    { ms[$1, ++seen[$1]] = $2 }
    END {
        printf "%-24s %10s %10s %8s\n", "case", "predicted", "measured", "error"
        for (name in seen) {
            n = seen[name]
            middle = n % 2 ? ms[name, (n + 1) / 2] : (ms[name, n / 2] + ms[name, n / 2 + 1]) / 2
            error = 100 * (predicted[name] / middle - 1)
            size = error < 0 ? -error : error
            sum += size; count++
            if (size > worst) worst = size
            printf "%-24s %10.3f %10.3f %+7.1f %%\n", name, predicted[name], middle, error | "sort"
        }
        close("sort")
        printf "mean error %.1f %%, largest %.1f %%, of %d cases\n", sum / count, worst, count
    }'
