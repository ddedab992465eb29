#!/bin/sh
# SPDX-License-Identifier: MIT
# Runs every fuzz target with libFuzzer, for RUNS inputs each (100000). What it finds, new inputs of the corpus included,
# is in fuzz-found/TARGET. usage: run_fuzz.sh [TARGET]..., in the build tree of "make fuzz"
set -u

here=$(cd "$(dirname "$0")" && pwd) || exit 1
export ASAN_OPTIONS=detect_leaks=1:allocator_may_return_null=1 UBSAN_OPTIONS=print_stacktrace=1
[ $# -gt 0 ] || set -- idx gzip csv safetensors state options settings list report record
failed=0
for target in "$@"; do
    mkdir -p "fuzz-found/$target"
    start=$(date +%s)
    status=0
    ISO_TEST_FUZZ=$target tests/fuzz/fuzz -runs="${RUNS:-100000}" -max_len=8192 -rss_limit_mb=4096 -timeout=20 \
        -close_fd_mask=3 -print_final_stats=1 -artifact_prefix="fuzz-found/$target-" "fuzz-found/$target" "$here/corpus/$target" \
        >"fuzz-found/$target.log" 2>&1 || status=$?
    inputs=$(sed -n 's/^stat::number_of_executed_units: *//p' "fuzz-found/$target.log")
    echo "$target: ${inputs:-0} inputs in $(($(date +%s) - start)) s, status $status"
    [ "$status" = 0 ] || failed=$((failed + 1))
done
[ "$failed" = 0 ]
