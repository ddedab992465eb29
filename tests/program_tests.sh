# SPDX-License-Identifier: MIT
# Sourced by the scripts that run programs and judge what they do: a folder to work in, programs under a limit, results
# as TAP, and the values in a log. Expects in $root the top of the source tree, and to be in the build tree.
# shellcheck shell=sh disable=SC2034,SC2154
export LC_ALL=C
# shellcheck source=tests/test_env.sh
. "$root/tests/test_env.sh"

launcher=${MPIRUN:-mpirun}
flags=${MPIRUN_FLAGS---oversubscribe --bind-to none}
programs=$PWD/bin
train=$programs/train
limit=${ISO_TEST_TIMEOUT:-60} # seconds that a program may take
shown="stdout stderr"   # files that explain a failure

need_launcher() {
    [ "$launcher" = no ] || return 0
    echo "1..0 # SKIP configure found no MPI launcher"
    exit 0
}

# A new folder, $work, that goes with the script.
enter_work() {
    work=$(mktemp -d) || exit 1
    trap 'rm -rf "$work"' EXIT
    cd "$work" || exit 1
    : >results
}

explain() {
    # shellcheck disable=SC2086  # several files
    cat $shown 2>/dev/null | sed 's/^/# /'
}
# Prints and counts a result.
result() { # 0 for good, what should hold
    echo "$2" >>results
    if [ "$1" = 0 ]; then
        echo "ok - $2"
    else
        echo "not ok - $2"
        explain
    fi
}
print_plan() { echo "1..$(wc -l <results)"; }

# Keep the status and what was printed.
run_alone() { # program, arguments...
    status=0
    timeout -k 5 "$limit" "$@" >stdout 2>stderr </dev/null || status=$?
}
run() { # ranks, program, arguments...; 0 ranks: without the launcher
    ranks=$1
    shift
    # shellcheck disable=SC2086  # flags are several words
    [ "$ranks" = 0 ] || set -- "$launcher" $flags -n "$ranks" "$@"
    run_alone "$@"
}
# Waits until a command succeeds, at most a minute.
wait_until() { # command...
    tries=0
    until "$@" 2>/dev/null || [ $tries -ge 600 ]; do
        sleep 0.1
        tries=$((tries + 1))
    done
}
# Whether a program that prints to a full disk fails with one sentence.
fails_on_full_output() { # name, program, arguments...
    name=$1
    shift
    [ -c /dev/full ] || return 0
    status=0
    timeout -k 5 "$limit" "$@" >/dev/full 2>stderr </dev/null || status=$?
    has_failed && [ "$(wc -l <stderr)" = 1 ] &&
        grep -qE "^$name: cannot write to standard output: (No space left on device|is the disk full\?)$" stderr
}
# It failed, and nobody had to end it.
has_failed() { [ "$status" != 0 ] && [ "$status" != 124 ] && [ "$status" != 137 ]; }
# One sentence of the program in a file, of which this is a pattern.
one_sentence() { # program, pattern, file
    # It may also warn of more ranks or threads than there are cores.
    [ "$(grep "^$1: " "$3" | grep -vcE "^$1: warning: ranks? [0-9]+[-0-9]*: ")" = 1 ] && grep -qE "^$1: $2" "$3"
}
has_crashed() { grep -qE 'received signal|Segmentation|Aborted|\[[0-9]\] func' "$@"; }

field() { # key, log: the value in its last line
    tail -n 1 "$2" | sed -n 's/.*"'"$1"'":"\{0,1\}\([^,"}]*\).*/\1/p'
}
summary_field() { # key, log: the value in its summary
    sed -n 's/.*"event":"summary".*"'"$1"'":"\{0,1\}\([^,"}]*\).*/\1/p' "$2"
}
