#!/bin/sh
# SPDX-License-Identifier: MIT
# Checks the man pages: every program has one, with the options that its --help has. A TAP result for each property.
# usage: check_man.sh, in the build tree
set -u
export LC_ALL=C

root=$(cd "$(dirname "$0")/.." && pwd) || exit 1
# shellcheck source=tests/test_env.sh
. "$root/tests/test_env.sh"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
count=0
result() { # 0 for good, what should hold; $work/output has what is wrong
    count=$((count + 1))
    if [ "$1" = 0 ]; then
        echo "ok - $2"
    else
        echo "not ok - $2"
        sed 's/^/# /' "$work/output"
    fi
}
installed() { # where; with the prefix iso- unless configure was told otherwise
    env -u MAKEFLAGS -u MFLAGS make --no-print-directory DESTDIR="$1" install-man >"$work/output" 2>&1 </dev/null
}

# Options with their arguments, one a line; sweep ends with a list of options of train.
of_help() {
    sed -n '/^These options cannot differ/q; s/^  \(--[^ ]*\( [^ ][^ ]*\)\{0,1\}\)\(  .*\)\{0,1\}$/\1/p' | sort
}
of_page() { # page
    awk '/^\.TP/ { getline; print }' "$1" | sed 's/\\f[BIR]//g; s/\\-/-/g' | grep '^--' | sort
}

for program in train sweep predict postmortem mnist mnist-daso get-mnist elastic; do
    page=$root/docs/man/$program.1
    timeout -k 5 60 "bin/$program" --help 2>&1 </dev/null | of_help >"$work/help"
    of_page "$page" >"$work/page"
    [ -s "$work/help" ] && diff "$work/help" "$work/page" >"$work/output" 2>&1
    result $? "the page of $program has the options of its --help"
    grep -q "^iso.*$(echo "$program" | sed 's/-/\\\\-/g') " "$page" && grep -q '^\.TH ISO' "$page"
    result $? "the page of $program has its name"
    if command -v groff >/dev/null; then
        groff -man -Tascii -ww -z "$page" >"$work/output" 2>&1
        [ ! -s "$work/output" ]
        result $? "groff formats the page of $program without a warning"
    fi
done

installed "$work/dest" && find "$work/dest" -name '*.1' | wc -l >"$work/output" && grep -qx ' *8' "$work/output"
result $? "make install installs eight pages"
programs=$(find "$work/dest" -name '*.1' | sed 's/.*\///; s/\.1$//' | sort | tr '\n' ' ')
transform=$(sed -n 's/^program_transform_name = //p' Makefile | sed 's/\$\$/$/g')
expected=$(printf '%s\n' train sweep predict postmortem mnist mnist-daso get-mnist elastic | sed "$transform" | sort | tr '\n' ' ')
echo "installed: $programs expected: $expected" >"$work/output"
[ "$programs" = "$expected" ]
result $? "pages are installed under the names of the programs"

echo "1..$count"
