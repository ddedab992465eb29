#!/bin/sh
# SPDX-License-Identifier: MIT
# Runs one Criterion test program and prints its results as TAP, with its output after a failure.
# usage: run_unit.sh PROGRAM [SUITE/TEST], where the name may be a pattern; ISO_TEST_TIMEOUT limits the whole
#        program, in seconds (300)
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
. "$root/tests/test_env.sh"
program=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
: >"$work/tap"

status=0
timeout -k 5 "${ISO_TEST_TIMEOUT:-300}" "$program" ${2:+--filter "$2"} --tap="$work/tap" \
    >"$work/output" 2>&1 </dev/null || status=$?
if [ -s "$work/tap" ]; then
    sed "${2:+/SKIP test was skipped\$/d}" "$work/tap" # those that the pattern left out
else
    echo "1..1"
fi
# A failed test is reported by its own line; this is for a program that did not get that far.
if [ "$status" != 0 ] && ! grep -q '^not ok' "$work/tap"; then
    echo "not ok - $(basename "$program") ended with status $status"
fi
if [ "$status" != 0 ]; then
    sed 's/^/# /' "$work/output"
fi
