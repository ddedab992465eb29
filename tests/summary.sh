#!/bin/sh
# SPDX-License-Identifier: MIT
# Counts the results that "make check" left behind; the last line is "N passed, N failed, N skipped".
# usage: summary.sh BUILD-DIRECTORY...; fails if a test failed or none was run
set -eu
find_results() { # pattern
    for build in $builds; do
        [ ! -d "$build/tests" ] || find "$build/tests" -name "$1" -exec cat {} +
    done
}
builds=$*

# Names are in the .log files; the count is taken from the .trs files, into which no test can write. Failures come
# last, where a log that was cut off still has them.
for results in SKIP 'FAIL|XPASS|ERROR'; do
    find_results '*.log' | grep -hE "^($results): tests/" | sort || true
done
find_results '*.trs' | awk '
    /^:test-result: (PASS|XFAIL)/ { passed++ }
    /^:test-result: (FAIL|XPASS|ERROR)/ { failed++ }
    /^:test-result: SKIP/ { skipped++ }
    END {
        printf "%d passed, %d failed, %d skipped\n", passed, failed, skipped
        exit failed > 0 || passed == 0
    }'
