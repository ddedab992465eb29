#!/bin/sh
# SPDX-License-Identifier: MIT
# A library in place of a profiler records the ranges that train shows through NVTX: they nest, they end, and training
# has the bits of a run without it. Prints the results as TAP.
# usage: check_profiler.sh, in the build tree; uses MPIRUN and MPIRUN_FLAGS
# Not -e: what fails here is a result, not the end.
set -u

root=$(cd "$(dirname "$0")/.." && pwd) || exit 1
# shellcheck source=tests/program_tests.sh
. "$root/tests/program_tests.sh"
need_launcher
recorder=$PWD/tests/.libs/nvtx_recorder.so
if [ ! -e "$recorder" ]; then
    echo "1..0 # SKIP this build has no NVTX"
    exit 0
fi
enter_work

# What is wrong with the ranges of a process: each thread's pushes and pops, and each start and end.
judge_ranges() { # files
    awk '
        { thread = FILENAME ", thread " $2 }
        $1 == "push" { depth[thread]++ }
        $1 == "pop" && --depth[thread] < 0 { print thread ": a pop without a push"; depth[thread] = 0 }
        $1 == "start" { open[FILENAME " " $2] = 1 }
        $1 == "end" && !((FILENAME " " $2) in open) { print FILENAME ": an end without a start" }
        $1 == "end" { delete open[FILENAME " " $2] }
        END {
            for (thread in depth) if (depth[thread] != 0) print thread " has " depth[thread] " open ranges"
            for (id in open) print "range " id " does not end"
        }' "$@"
}
# The lines of a process that match: how many in each file.
each_has() { # number, pattern, files
    count=$1 pattern=$2
    shift 2
    for file; do [ "$(grep -cE "$pattern" "$file")" = "$count" ] || return 1; done
}

# 12 steps with 2 buckets: fc2 with fc3, and fc1.
set -- --model mlp --batch 16 --steps 12 --test-limit 50 --quiet
run 2 "$train" "$@" --log plain
hash=$(field param_hash plain)
for mode in lazy blocking "lazy --zero" "localsgd --period 4"; do
    name=$(echo "$mode" | tr -d " -")
    NVTX_INJECTION64_PATH=$recorder NVTX_RANGES=$work/$name
    export NVTX_INJECTION64_PATH NVTX_RANGES
    # shellcheck disable=SC2086  # several words
    run 2 "$train" "$@" --log "log-$name" --sync $mode
    unset NVTX_INJECTION64_PATH NVTX_RANGES
    case $mode in
    lazy*|blocking)
        [ -n "$hash" ] && [ "$(field param_hash "log-$name")" = "$hash" ]
        result $? "a profiler does not change the bits of --sync $mode"
        ;;
    esac
    [ "$(find . -name "$name.*" | wc -l)" = 2 ] && judge_ranges "$name".* >stdout && [ ! -s stdout ]
    result $? "the ranges of both ranks nest and end with --sync $mode"
done

each_has 1 '^domain isotherm$' lazy.* && each_has 1 '^category 1 compute$' lazy.* &&
    each_has 1 '^category 6 data$' lazy.*
result $? "ranges are in a domain isotherm, with the lanes as categories"
each_has 12 '^push [0-9]+ 1 fc1 backward$' lazy.* && each_has 12 '^push [0-9]+ 5 fc1.weight$' lazy.* &&
    each_has 1 '^push [0-9]+ 6 batch 3$' lazy.*
result $? "layers, updates and batches are ranges of their threads"
for mode in lazy blocking; do
    each_has 12 '^start [0-9]+ 3 fc1$' $mode.* && each_has 24 '^start ' $mode.* && each_has 12 '^push [0-9]+ 4 fc1$' $mode.*
    result $? "each exchange of $mode is a range, and so is the wait for it"
done
each_has 24 '^start [0-9]+ 3 fc1$' lazyzero.* && each_has 24 '^push [0-9]+ 4 fc1$' lazyzero.*
result $? "with ZeRO the way of the new values is a range of its own"
each_has 3 '^start [0-9]+ 3 mean over nodes$' localsgdperiod4.* && each_has 2 '^push [0-9]+ 4 global sync$' localsgdperiod4.*
result $? "exchanges of parameters are ranges, and so are the waits for them"
print_plan
