#!/bin/sh
# SPDX-License-Identifier: MIT
# Compares what a sweep predicts for slower networks with what the runs take on them: emulated hosts, one rank each.
# usage: predict.sh [OPTION]... [RUN]..., from the top of the build tree; needs root
#   RUN is "NAME: OPTIONS OF TRAIN"; without any: lazy, blocking, lazy with bf16, daso, daso with --wait 4, localsgd
#   --hosts N         (2)
#   --base RATE       Mbit/s at which the runs are measured, and from which is predicted (1000)
#   --rates 'RATE...' Mbit/s that are predicted, then measured ('200 100')
#   --rounds N        the rates take turns N times; times are medians (3)
#   --options 'OPT'   of all runs ('--model mlp --steps 100 --eval-every 20 --test-limit 1000')
#   --target X        test accuracy (0.85)
#   --keep DIR        keep folders of sweeps there; a sweep that is there is not made again
set -eu

here=$(cd "$(dirname "$0")" && pwd)
usage() {
    sed -n '/^# usage: /,/^set -eu/s/^# \{0,1\}//p' "$0" >&2
    exit 2
}
hosts=2 base=1000 rates='200 100' rounds=3 target=0.85 keep=''
options='--model mlp --steps 100 --eval-every 20 --test-limit 1000'
while [ $# -gt 0 ]; do
    case $1 in
    --help) usage ;;
    --*) [ $# -ge 2 ] || usage ;;
    *) break ;;
    esac
    case $1 in
    --hosts) hosts=$2 ;;
    --base) base=$2 ;;
    --rates) rates=$2 ;;
    --rounds) rounds=$2 ;;
    --options) options=$2 ;;
    --target) target=$2 ;;
    --keep) keep=$2 ;;
    *) usage ;;
    esac
    shift 2
done
[ -x bin/sweep ] || {
    echo "error: bin/sweep is missing here: run \"make\" in the build tree first" >&2
    exit 1
}
[ $# -gt 0 ] || set -- "lazy: --sync lazy" "blocking: --sync blocking" "bf16: --sync lazy --wire bf16" \
    "daso: --sync daso" "daso-wait4: --sync daso --wait 4" "localsgd: --sync localsgd --period 8"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 143' INT TERM HUP
study=${keep:-$work}
mkdir -p "$study"

for round in $(seq "$rounds"); do
    for rate in $base $rates; do
        # shellcheck disable=SC2086  # options are several words
        sh "$here/../cluster/with_cluster.sh" -n "$hosts" -r "${rate}mbit" -t 1800 -- mpirun -n "$hosts" bin/sweep \
            --out "$study/$rate-$round" --target "$target" $options --quiet -- "$@" >"$work/output" 2>&1 || {
            status=$?
            cat "$work/output" >&2
            exit "$status"
        }
    done
done

# Of each sweep at the base a prediction for each rate.
for rate in $rates; do
    for round in $(seq "$rounds"); do
        bin/sweep --report "$study/$base-$round" --out "$work/at" --target "$target" --predict "$rate" --quiet
        sed 1d "$work/at/predictions.csv" | tr -d '\r' | awk -F, -v rate="$rate" \
            '{ print "predicted", rate, $1, "target", $8; print "predicted", rate, $1, "end", $10 }'
        sed 1d "$study/$rate-$round/runs.csv" | tr -d '\r' | awk -F, -v rate="$rate" \
            '{ print "measured", rate, $1, "target", $5; print "measured", rate, $1, "end", $11 }'
        sed 1d "$study/$base-$round/runs.csv" | tr -d '\r' | awk -F, -v rate="$rate" \
            '{ print "base", rate, $1, "target", $5; print "base", rate, $1, "end", $11 }'
    done
done | awk -v base="$base" -v rates="$rates" '
    NF == 5 { key = $1 " " $2 " " $3 " " $4; value[key, ++count[key]] = $5; if (!seen[$3]++) name[++names] = $3 }
    function median(key,   n, i, k, v) {
        n = count[key]
        for (i = 1; i <= n; i++) sorted[i] = value[key, i] + 0
        for (i = 2; i <= n; i++)
            for (k = i; k > 1 && sorted[k] < sorted[k - 1]; k--) { v = sorted[k]; sorted[k] = sorted[k-1]; sorted[k-1] = v }
        return n == 0 ? "" : n % 2 ? sorted[(n + 1) / 2] : (sorted[n / 2] + sorted[n / 2 + 1]) / 2
    }
    function row(rate, what, i,   measured, predicted, error) {
        measured = median("measured " rate " " name[i] " " what); predicted = median("predicted " rate " " name[i] " " what)
        if (measured == "" || predicted == "") return
        error = 100 * (predicted / measured - 1)
        sum[what] += error < 0 ? -error : error; rows[what]++
        printf "%6s %-12s %-6s %9.2f %9.2f %9.2f %7.1f\n", rate, name[i], what,
            median("base " rate " " name[i] " " what), predicted, measured, error
        if (best[0] == "" || measured < best[0]) { second = best[0]; best[0] = measured; first = name[i] }
        else if (second == "" || measured < second) second = measured
        if (guess == "" || predicted < guess) { guess = predicted; guessed = name[i] }
    }
    END {
        printf "%6s %-12s %-6s %9s %9s %9s %7s\n", "Mbit/s", "run", "to", "at " base, "predicted", "measured", "error %"
        n = split(rates, list, " ")
        for (r = 1; r <= n; r++)
            for (w = 1; w <= 2; w++) {
                best[0] = second = guess = ""
                for (i = 1; i <= names; i++) row(list[r], w == 1 ? "end" : "target", i)
                if (guess != "") printf "%6s predicted winner %s, measured winner %s (the second takes %.1f %% more)\n", list[r],
                    guessed, first, second == "" ? 0 : 100 * (second / best[0] - 1)
            }
        for (what in sum) printf "mean error to %s: %.1f %%\n", what, sum[what] / rows[what]
    }'
