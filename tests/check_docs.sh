#!/bin/sh
# SPDX-License-Identifier: MIT
# Checks the documentation: a TAP result for each property. README is short, links lead somewhere, the tests of
# features exist, and code compiles.
# usage: check_docs.sh, in the build tree; uses MPICC (mpicc)
set -u
export LC_ALL=C

root=$(cd "$(dirname "$0")/.." && pwd) || exit 1
build=$PWD
cc=${MPICC:-mpicc}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$root" || exit 1

result() { # what should hold; standard input has the lines that break it
    echo "$1" >>"$work/results"
    sed 's/^/# /' >"$work/broken"
    if [ -s "$work/broken" ]; then
        echo "not ok - $1"
        cat "$work/broken"
    else
        echo "ok - $1"
    fi
}

pages="README.md CONTRIBUTING.md CHANGELOG.md"
for page in docs/*.md; do
    pages="$pages $page"
done

awk 'END { if (NR > 150) print "README.md has " NR " lines" }' README.md |
    result "README has at most 150 lines"
awk 'length > 120 { print FILENAME ":" FNR ": " length " columns" }' README.md |
    result "README has at most 120 columns"

# ---- Links -----------------------------------------------------------------------------------------

# Prints PAGE LINK for each link to a file or heading; code is not looked at.
links_of() { # page
    awk -v page="$1" '
        /^```/ { code = !code; next }
        code || /^    / { next }
        {
            while (match($0, /\]\([^)]*\)/)) {
                link = substr($0, RSTART + 2, RLENGTH - 3)
                $0 = substr($0, RSTART + RLENGTH)
                if (link !~ /^https?:/) print page, link
            }
        }' "$1"
}
# Prints the anchors of the headings of a page, as GitHub and others make them.
anchors_of() { # page
    awk '
        /^```/ { code = !code; next }
        !code && sub(/^#+ /, "") {
            line = tolower($0)
            gsub(/[^a-z0-9 _-]/, "", line)
            gsub(/ /, "-", line)
            print line
        }' "$1"
}
follow() { # page, link
    file=${2%%#*}
    anchor=${2#"$file"}
    file=${file:+$(dirname "$1")/$file}
    file=${file:-$1}
    [ -e "$file" ] || echo "$1: $2: there is no such file"
    [ -z "$anchor" ] || anchors_of "$file" | grep -qxF "${anchor#\#}" || echo "$1: $2: there is no such heading"
}
for page in $pages; do
    links_of "$page"
done >"$work/links"
while read -r page link; do
    follow "$page" "$link"
done <"$work/links" | result "every link leads to a file and a heading"
# Files and folders of the source tree that pages name in passing.
for page in $pages; do
    # shellcheck disable=SC2016  # the backticks are Markdown's
    grep -oE '`(autotools|docs|examples|include|optim|src|tests)/[A-Za-z0-9_./-]*(\.[a-z0-9]+|/)[` ]' "$page" | tr -d '` ' | sort -u |
        while read -r path; do
            [ -e "$path" ] || echo "$page: $path"
        done
done | grep -vE 'docs/html|/NAME\.' | result "every file that a page names is there"
for page in docs/*.md; do
    grep -qF "($page)" README.md || echo "$page"
done | result "README links every page of docs"
awk 'END { if (NR < 60) print "only " NR " links" }' "$work/links" | result "links are found"
for page in $pages docs/*.svg; do
    grep -q "^ *$page\\( \\\\\\)*\$" docs/local.mk || echo "$page"
done | result "docs/local.mk lists every page and picture"

# ---- The table of features ---------------------------------------------------------------------------

# The cells of its lines, with tabs in between: line, what Isotherm has, tests, status.
awk '
    !/^\|/ { split("", place) }
    !/^\|/ || /^\|-/ { next }
    {
        count = split($0, cell, / *\| */)
        if ("Status" in place) print FNR "\t" cell[place["Isotherm"]] "\t" cell[place["Test"]] "\t" cell[place["Status"]]
        for (i = 2; i < count && cell[count - 1] == "Status"; i++) place[cell[i]] = i
        if (!("Isotherm" in place)) split("", place)
    }' docs/features.md >"$work/features"
awk 'END { if (NR < 200) print "only " NR " lines" }' "$work/features" | result "features are found"
awk -F '\t' '$4 !~ /^(yes|missing|partly: .+|not applicable: .+)$/ { print "docs/features.md:" $1 ": status \"" $4 "\"" }
    $4 ~ /^(yes|partly)/ && !($2 && $3) { print "docs/features.md:" $1 ": what has it, and which test shows it?" }' "$work/features" |
    result "every feature has a status, and a test if it is there"
# Of scripts the text of a result.
is_test() { # file, name
    file=$(find tests -name "$1")
    case $file in
    *.c) grep -qE "^[A-Za-z_]+\\(([a-z0-9_]+, *)?$2[,)]" "$file" ;;
    *.sh) grep -qF -- "$2" "$file" ;;
    *) false ;;
    esac
}
cut -f 3 "$work/features" | grep -oE '`[^`]*`' | tr -d '`' | sort -u | while IFS= read -r named; do
    is_test "${named%%::*}" "${named#*::}" || echo "docs/features.md: $named: there is no such test"
done | result "every test of a feature is there"
cut -f 2 "$work/features" | grep -oE '`[^`]*`' | grep -oE '(--)?[A-Za-z][A-Za-z0-9_-]*' | sort -u | while read -r word; do
    case $word in
    --*) grep -q "^  $word " docs/training.md ;;
    *-* | MPI_*) true ;;
    *_*) grep -qrw "$word" include/isotherm src/base/env.c ;;
    esac || echo "docs/features.md: there is no $word"
done | result "every function and option of a feature is there"

# ---- Code ------------------------------------------------------------------------------------------

code_of() { # page: its C code
    awk '/^```c$/ { on = 1; next } /^```/ { on = 0 } on' "$1"
}
compiles() { # page
    cat >"$work/code.c" <<'END'
#include <isotherm.h>
enum { EPOCHS = 3 };
iso_status check(iso_status status);
void code(iso_comm *comm, iso_module *model, iso_loss *loss, iso_optimizer *optimizer, iso_loader *data, int64_t steps);
void code(iso_comm *comm, iso_module *model, iso_loss *loss, iso_optimizer *optimizer, iso_loader *data, int64_t steps) {
    iso_batch batch;
    iso_tensor *output, *gradient;
    double value;
    (void)comm, (void)loss, (void)data, (void)steps, (void)batch, (void)output, (void)gradient, (void)value;
END
    code_of "$1" >>"$work/code.c"
    echo "}" >>"$work/code.c"
    "$cc" -fsyntax-only -Wall -Wextra -Werror -I"$root/include" -I"$build/include" "$work/code.c" 2>&1 ||
        echo "$1 does not compile"
}
for page in README.md docs/sync-modes.md; do
    compiles "$page" | result "the code of $page compiles"
    code_of "$page" | while read -r line; do
        cat examples/mnist.c examples/mnist_daso.c | grep -qF -- "$line" || echo "$line"
    done | result "the code of $page stands in an example"
done

# What is left of an example without comments and without what it prints about itself.
bare() { # file
    sed 's/mnist-daso/mnist/g; s/ *\/\/.*//; /^ *"/d; /^ *$/d' "$1"
}
bare examples/mnist.c >"$work/mnist"
bare examples/mnist_daso.c >"$work/mnist_daso"
diff "$work/mnist" "$work/mnist_daso" | grep '^[<>]' | grep -v '^> .*daso' |
    result "mnist_daso.c differs from mnist.c by DASO alone"

echo "1..$(wc -l <"$work/results")"
