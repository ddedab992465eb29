#!/bin/sh
# SPDX-License-Identifier: MIT
# Makes the API reference and looks into it: a TAP result for each property.
# usage: check_doxygen.sh, in the build tree
set -u
export LC_ALL=C

root=$(cd "$(dirname "$0")/.." && pwd) || exit 1
if [ -z "$(sed -n 's/^DOXYGEN = //p' Makefile)" ]; then
    echo "1..0 # SKIP configure found no Doxygen"
    exit 0
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
: >"$work/results"
result() { # what should hold; standard input has the lines that break it
    echo "$1" >>"$work/results"
    sed 's/^/# /' >"$work/broken"
    if [ -s "$work/broken" ]; then
        echo "not ok - $1"
        head -n 40 "$work/broken"
    else
        echo "ok - $1"
    fi
}

{ env -u MAKEFLAGS -u MFLAGS make --no-print-directory doc >"$work/output" 2>&1 </dev/null || echo "make doc failed"; } >"$work/failed"
grep -E 'warning|error' "$work/output" | cat - "$work/failed" | result "Doxygen makes the reference without a warning"

# Text of the pages, without tags and white space.
cat docs/html/*_8h.html docs/html/struct*.html docs/html/index.html |
    sed 's/<[^>]*>//g; s/&lt;/</g; s/&gt;/>/g; s/&quot;/"/g; s/&amp;/\&/g; s/&#160;//g; s/&ldquo;/"/g' | tr -d ' \t\n' >"$work/text"
# Every function of the headers is there, and every line of comment that stands above or behind code.
sed -n 's/^[^/#]*[ *]\(iso_[a-z0-9_]*\)(.*/\1/p' "$root"/include/isotherm/*.h | sort -u >"$work/functions"
{
    [ "$(wc -l <"$work/functions")" -gt 200 ] || echo "only $(wc -l <"$work/functions") functions"
    while read -r function; do
        grep -qF "$function(" "$work/text" || echo "$function"
    done <"$work/functions"
} | result "every function is in the reference"
for header in "$root"/include/isotherm/*.h; do
    name=$(basename "$header")
    awk -f "$root/autotools/doxygen_filter.awk" "$header" | sed -n 's/^ *\/\/\/<\{0,1\} \([A-Z].*\)/\1/p' | grep -v '@' |
        sed 's/\\\(.\)/\1/g' | while read -r line; do
        grep -qF -- "$(echo "$line" | tr -d ' \t')" "$work/text" || echo "$name: $line"
    done
done | result "every comment is in the reference"

# The filter changes comments alone.
for header in "$root"/include/isotherm.h "$root"/include/isotherm/*.h; do
    sed 's/ *\/\/.*//' "$header" | grep -v '^ *$' >"$work/before"
    awk -f "$root/autotools/doxygen_filter.awk" "$header" | sed 's/ *\/\/.*//' | grep -v '^ *$' >"$work/after"
    cmp "$work/before" "$work/after" 2>&1
done | result "the filter leaves code as it is"

echo "1..$(wc -l <"$work/results")"
