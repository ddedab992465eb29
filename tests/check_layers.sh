#!/bin/sh
# SPDX-License-Identifier: MIT
# Checks the rules on who may include and call what, and prints a TAP result for each rule.
# usage: check_layers.sh [SOURCE-DIRECTORY [BUILD-DIRECTORY]]
# Circles of files are found in the objects of BUILD-DIRECTORY, by default the current one.
set -eu
export LC_ALL=C

build=$(cd "${2:-.}" && pwd)
cd "${1:-$(dirname "$0")/..}"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
find include src optim examples tests -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' -o -name '*.sh' |
    sort >"$work/files"
grep -v '\.sh$' "$work/files" >"$work/sources" || true

# code: one line "FILE:LINE:TEXT" for each line of the sources, without comments and strings.
# includes: one line "FILE:LINE:HEADER" for each #include.
: >"$work/code"
: >"$work/includes"
while read -r file; do
    awk -v file="$file" -v code="$work/code" -v includes="$work/includes" '
        /^[ \t]*#[ \t]*include/ {
            header = $0
            sub(/^[^<"]*[<"]/, "", header)
            sub(/[>"].*/, "", header)
            print file ":" FNR ":" header >>includes
            next
        }
        {
            line = $0
            gsub(/\\./, "", line)
            gsub(/"[^"]*"/, "\"\"", line)
            if (comment && !sub(/^.*\*\//, "", line))
                next
            comment = 0
            gsub(/\/\*([^*]|\*+[^*\/])*\*+\//, " ", line)
            sub(/\/\/.*/, "", line)
            if (sub(/\/\*.*/, "", line))
                comment = 1
            print file ":" FNR ":" line >>code
        }' "$file"
done <"$work/sources"

: >"$work/rules"
# Prints the result of a rule; standard input holds the lines that break it, none if it is kept.
rule() { # what the rule says
    echo "$1" >>"$work/rules"
    sed 's/^/# breaks it: /' >"$work/broken"
    if [ -s "$work/broken" ]; then
        echo "not ok - $1"
        cat "$work/broken"
    else
        echo "ok - $1"
    fi
}
# Lines of the library's own sources, public headers left out, that match a pattern in their text.
library_code() { # pattern
    grep -E "^(src|optim)/[^:]*:[0-9]+:.*$1" "$work/code" || true
}
# Words are found where no letter, digit or underscore stands before them.
word='(^|[^A-Za-z0-9_])'

awk -F: '
    BEGIN {
        row["base"] = 0; row["device"] = 1; row["tensor"] = 2
        row["nn"] = row["comm"] = row["data"] = row["io"] = 3
        row["exchange"] = 4; row["parallel"] = 5; row["optim"] = 6
        count = split("status base trace base device device tensor tensor nn nn comm comm " \
            "data data checkpoint io metrics io reducer parallel parallel parallel " \
            "optim optim daso optim topology comm resume optim schedule optim plateau optim state_dict optim clip parallel sync_batchnorm parallel strategy optim comm_hook exchange join parallel shuffle parallel", list, " ")
        for (i = 1; i < count; i += 2)
            public_module[list[i]] = list[i + 1]
    }
    function module(path,  name) { # of a source file or of an included header, "" if foreign
        name = path
        sub(/^include\//, "", name)
        if (sub(/^isotherm\//, "", name)) {
            sub(/\.h$/, "", name)
            return public_module[name]
        }
        sub(/^src\//, "", name)
        sub(/\/.*/, "", name)
        return name in row ? name : ""
    }
    # The one exception: the table of kernels names the types of its arguments.
    $1 == "src/device/device_impl.h" && $3 ~ /^(tensor\/tensor_impl|isotherm\/(tensor|nn))\.h$/ { next }
    {
        own = module($1)
        used = module($3)
        if (own != "" && used != "" && own != used && row[used] >= row[own])
            print $1 ":" $2 ": " own " includes " $3 " of " used
    }' "$work/includes" |
    rule "includes point down: optim, parallel, exchange, {nn, comm, data, io}, tensor, device, base"

grep -E '^include/[^:]*:' "$work/includes" | grep -vE ':(isotherm/[a-z_]+\.h|[a-z]+\.h)$' |
    rule "public headers include public and standard headers only"

grep -E '^(include|src|optim|examples)/[^:]*:[0-9]+:(isotherm\.h|tests/|common/|examples/|.*\.\./)' \
    "$work/includes" | grep -v '^examples/.*:isotherm\.h$' |
    rule "the library includes no umbrella header, nothing of tests or examples, and no ../"

grep -E '^examples/.*:(src|base|device|tensor|nn|comm|exchange|parallel|data|io|optim)/' "$work/includes" |
    rule "examples use public headers only"

grep -E '^(src/(exchange/|parallel/reducer/)|include/isotherm/reducer)[^:]*:[0-9]+:(nn/|isotherm/(nn|parallel)\.h)' \
    "$work/includes" | rule "the reducer and exchanges know no nn"

# What a communicator is made of is its folder's; tests may look.
grep -E '^(src|optim)/[^:]*:[0-9]+:comm/' "$work/includes" | grep -v '^src/comm/' |
    grep -vE ':comm/(channel|comm_calls|same_lines|traffic)\.h$' |
    rule "outside src/comm, of its headers only channel, comm_calls, same_lines and traffic are included"

# What is inside a reducer is its folder's; tests may look.
grep -E ':parallel/reducer/' "$work/includes" | grep -vE '^(src/parallel/reducer/|tests/)' |
    grep -v ':parallel/reducer/reducer_calls\.h$' | rule "outside its folder, a reducer is asked by named calls"

grep -E '^optim/[^:]*:[0-9]+:(comm/|exchange/|parallel/|isotherm/(comm|reducer|parallel)\.h)' "$work/includes" |
    grep -vE '^optim/(dp_|strategy|periodic/(daso|periodic)|resume/resume)' |
    rule "in optim, only dp_*, daso*, periodic*, resume* and strategy* know communication"

{
    grep -E ':mpi\.h$' "$work/includes" | grep -E '^(include|src|optim)/' || true
    library_code "${word}MPI_"
} | grep -vE '^(src/comm/|include/isotherm/comm\.h:)' | rule "only src/comm knows MPI"

{
    grep -E ':(cuda|cublas|cudnn|nccl)[^/]*\.h$' "$work/includes" || true
    library_code "${word}(cuda[A-Z]|cublas[A-Z]|cudnn[A-Z]|nccl[A-Z])"
} | grep -vE '^(src/device/cuda/|src/exchange/coll_nccl|tests/)' | rule "only src/device/cuda and coll_nccl know CUDA"

{
    grep -E ':((oneapi/dnnl/)?dnnl.*|cblas|mkl.*)\.h$' "$work/includes" || true
    library_code "${word}(dnnl|cblas)_"
} | grep -vE '^(src/device/cpu/|tests/)' | rule "only src/device/cpu knows oneDNN and BLAS"

{
    grep -E ':nvtx3?/' "$work/includes" || true
    library_code "${word}nvtx[A-Z]"
} | grep -vE '^(src/base/profiler\.c:|tests/)' | rule "only src/base/profiler.c knows NVTX"

# But for ISO_STEP_TIMEOUT, which asks for it.
library_code "${word}(_?exit|_Exit|quick_exit|abort|v?printf|puts|putchar|MPI_(Init|Init_thread|Finalize|Abort)) *\\(" |
    grep -vE '^src/comm/step_limit\.c:[0-9]+: +_exit' |
    rule "the library does not end the process, print, or start and end MPI"

# How many processes there are is not known otherwise.
library_code "${word}MPI_COMM_WORLD" | grep -v '^src/comm/launcher.c:' |
    rule "MPI_COMM_WORLD appears in programs only"

xargs wc -l <"$work/sources" | awk '$2 != "total" && $1 > 500 { print $2 ": " $1 " lines" }' |
    rule "no source file is longer than 500 lines"
# In autotools/m4, libtoolize's macros lie beside the project's own. A release has no .ci.
{
    cat "$work/files"
    find include src optim examples tests docs -name '*.cc' -o -name '*.cpp' -o -name '*.f90' -o -name '*.py' -o \
        -name '*.awk' -o -name '*.m4' -o -name '*.mk'
    ls autotools/*.sh autotools/*.awk autotools/m4/iso_*.m4 Makefile.am configure.ac quickstart .ci/run 2>/dev/null || true
} | while read -r file; do
    head -n 2 "$file" | grep -q 'SPDX-License-Identifier: MIT$' || echo "$file"
done | rule "sources and scripts name their licence (SPDX-License-Identifier)"

# The error trail prints them. Examples that are read as a tutorial have their own way.
grep -E '^(src|optim|examples/[a-z_]+)/[^:]*\.c:[0-9]+:static [^=;({]*[ *][a-z][a-z0-9]*\(' "$work/code" |
    rule "static functions have names of two words or more"

awk -F/ '{ if ($NF in first) print $0 " and " first[$NF]; else first[$NF] = $0 }' "$work/files" |
    rule "file names are unique in the tree"

# Folders, with what is below them, in which no files need each other in a circle.
circle_free='src/device/cpu src/io src/data src/nn src/comm src/exchange src/parallel src/parallel/reducer optim optim/periodic optim/resume'

# One line "FILE SYMBOL TYPE" for each symbol of the objects that were built from a folder's sources.
symbols_of() { # folder
    find "$1" -name '*.c' | sort | while read -r file; do
        name=${file##*/}
        for object in "$build/${file%/*}/.libs/libiso_core_la-${name%.c}.o" \
            "$build/${file%/*}/libiso_core_la-${name%.c}.o"; do
            [ -f "$object" ] || continue
            "${NM:-nm}" -P "$object" | awk -v file="$file" '{ print file, $1, $2 }'
            break
        done
    done
}

# A file needs another if it names a symbol that the other defines. Two files that need each other,
# directly or through others, stand in a circle.
circles() { # standard input: symbols
    awk '
        $3 == "U" { needed[$1 " " $2] = 1; next }
        $3 ~ /^[A-Zi]$/ { owner[$2] = $1 }
        END {
            for (pair in needed) {
                split(pair, part, " ")
                from = part[1]
                to = owner[part[2]]
                if (to == "" || to == from)
                    continue
                symbol[from, to] = part[2]
                reach[from, to] = file[from] = file[to] = 1
            }
            for (k in file)
                for (i in file)
                    if ((i, k) in reach)
                        for (j in file)
                            if ((k, j) in reach)
                                reach[i, j] = 1
            for (pair in symbol) {
                split(pair, part, SUBSEP)
                if ((part[2], part[1]) in reach)
                    print part[1] " needs " symbol[pair] " of " part[2] ", which needs it in turn"
            }
        }' | sort
}

for folder in $circle_free; do
    symbols_of "$folder" >"$work/symbols"
    said="no files of $folder need each other in a circle"
    if [ -s "$work/symbols" ]; then
        circles <"$work/symbols" | rule "$said"
    else
        rule "$said # SKIP there are no objects in $build: build first" </dev/null
    fi
done

echo "1..$(grep -c . "$work/rules")"
