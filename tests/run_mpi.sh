#!/bin/sh
# SPDX-License-Identifier: MIT
# Runs the tests of one Criterion program under MPI, one launch per test, and prints the results as TAP.
# The number of ranks is in the suite's name: np4_daso runs on 4.
# usage: run_mpi.sh PROGRAM [SUITE/TEST]; uses MPIRUN and MPIRUN_FLAGS;
#        ISO_TEST_TIMEOUT limits each launch, in seconds (150)
#        ISO_TEST_ONCE=N: a test that there is for several numbers of ranks runs on one of them: N ranks, else the next
#        number above, else the most; tests on 1 rank do not run
#        ISO_TEST_WITHOUT: SUITE/TESTs that are skipped
#        ISO_TEST_HAS_GPU: a command that fails where there is no GPU; tests of GPUs are then skipped without a launch
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
. "$root/tests/test_env.sh"
program=$1
only=${2:-}
limit=${ISO_TEST_TIMEOUT:-150}
launcher=${MPIRUN:-mpirun}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Prints SUITE/TEST for each test of the program.
list_tests() {
    LC_ALL=C "$program" --list >"$work/list" </dev/null || return 1
    awk '
        /^[^|`].*: [0-9]+ tests?$/ { sub(/: .*/, ""); suite = $0; next }
        /^[|`]-- / { print suite "/" $2 }' "$work/list"
}

# Of lines NP_SUITE/TEST, one of each suite and test.
choose_once() { # ranks
    awk -v wanted="$1" '
        function is_better(a, b) { return a >= wanted ? b < wanted || a < b : a > b }
        {
            ranks = substr($0, 3) + 0
            key = $0
            sub(/^np[0-9]+/, "", key)
            if (!(key in best)) order[++count] = key
            if (!(key in best) || is_better(ranks, best[key])) best[key] = ranks
        }
        END { for (i = 1; i <= count; i++) if (best[order[i]] != 1) print "np" best[order[i]] order[i] }'
}
lacks_gpu() {
    case $program in tests/gpu/*) ! ${ISO_TEST_HAS_GPU:-true} ;; *) false ;; esac
}
is_left_out() { # SUITE/TEST
    case " ${ISO_TEST_WITHOUT:-} " in *" $1 "*) return 0 ;; esac
    return 1
}

# Launches one test; each rank writes a TAP file of its own, as lines of ranks may mix on a pipe.
launch() { # ranks, SUITE/TEST
    # shellcheck disable=SC2086,SC2016  # flags are several words; $1 to $3 belong to the inner shell
    timeout -k 5 "$limit" "$launcher" ${MPIRUN_FLAGS---oversubscribe --bind-to none} -n "$1" \
        sh -c 'exec "$1" --jobs 1 --filter "$2" --tap="$3/$$"' \
        sh "$program" "$2" "$work/tap" >"$work/output" 2>&1 </dev/null
}

# Prints what the ranks said about the test: Criterion also lists those that the filter left out.
rank_results() { # SUITE::TEST
    find "$work/tap" -type f -exec cat {} + | grep -F "ok - $1 " || true
}

explain_status() { # of timeout(1)
    case $1 in
    124 | 137) echo "took longer than $limit s" ;;
    *) echo "status $1" ;;
    esac
}

# Prints what the ranks reported and printed.
show_output() {
    find "$work/tap" -type f -exec cat {} + |
        sed -e '/SKIP test was skipped/d' -e '/^TAP version/d' -e '/^1\.\./d' -e '/^#/d' -e 's/^/# /'
    sed 's/^/# /' "$work/output"
}

# Judges one test: prints its TAP line and, if it failed, all output.
run_test() { # SUITE/TEST
    name="${1%%/*}::${1#*/}"
    ranks=$(expr "$1" : 'np\([1-9][0-9]*\)_') || {
        echo "not ok - $name: the suite's name does not begin with the number of ranks, as np4_"
        return
    }
    if is_left_out "$1"; then
        echo "ok - $name # SKIP left out by ISO_TEST_WITHOUT"
        return
    fi
    if lacks_gpu; then
        echo "ok - $name # SKIP there is no GPU"
        return
    fi
    rm -rf "$work/tap"
    mkdir "$work/tap"
    status=0
    launch "$ranks" "$1" || status=$?
    results=$(rank_results "$name")
    passed=$(echo "$results" | grep -v '# SKIP' | grep -c '^ok' || true)
    skipped=$(echo "$results" | grep -c '# SKIP' || true)
    if [ "$passed" = "$ranks" ] && [ "$status" = 0 ]; then
        echo "ok - $name"
    # A test that skips itself does not finalize MPI, so that the launcher stops the other ranks.
    elif [ "$skipped" -gt 0 ] && ! echo "$results" | grep -qv '# SKIP'; then
        echo "ok - $name # SKIP $(echo "$results" | sed -n '1s/.*# SKIP *//p')"
    else
        echo "not ok - $name ($(explain_status "$status"), $passed of $ranks ranks passed)"
        show_output
    fi
}

if [ "$launcher" = no ]; then
    echo "1..0 # SKIP configure found no MPI launcher"
    exit 0
fi
tests=$only
if [ -z "$only" ] && ! tests=$(list_tests); then
    echo "1..1"
    echo "not ok - $program lists its tests"
    sed 's/^/# /' "$work/list"
    exit
fi
once=${ISO_TEST_ONCE:-}
[ -z "$once" ] || tests=$(echo "$tests" | choose_once "$once")
echo "1..$(echo "$tests" | grep -c .)"
for test in $tests; do
    run_test "$test"
done
