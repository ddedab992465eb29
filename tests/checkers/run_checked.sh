#!/bin/sh
# SPDX-License-Identifier: MIT
# Trains on several ranks under a tool that watches memory or threads. Every run must end well, and the tool may report
# nothing but what its file of suppressions explains. Prints the results as TAP; the reports stay in KEEP.
# usage: run_checked.sh tsan|valgrind, in the build tree: of one that is built with -fsanitize=thread, or of any;
#        KEEP names the folder to work in
set -u

root=$(cd "$(dirname "$0")/../.." && pwd) || exit 1
# shellcheck source=tests/program_tests.sh
. "$root/tests/program_tests.sh"
# shellcheck source=tests/idx_files.sh
. "$root/tests/idx_files.sh"
need_launcher
tool=$1
build=$PWD
KEEP=${KEEP:-$build/checked}
rm -rf "$KEEP"
mkdir -p "$KEEP" && cd "$KEEP" || exit 1
: >results
shown=output
limit=1800
export ISO_TIMEOUT=900
export LD_LIBRARY_PATH="$build/.libs:${LD_LIBRARY_PATH:-}"
# What is left of Open MPI then has fewer threads, which these tools do not know.
export OMPI_MCA_btl=self,vader OMPI_MCA_pml=ob1
# Code that oneDNN generates reads beyond blocks of its own, and has no names that could be suppressed.
export ISO_CPU_KERNELS=reference
export TSAN_OPTIONS="suppressions=$root/tests/checkers/thread.supp log_path=$KEEP/report exitcode=0 history_size=7"
data_set images 96 40 8

# Without libtool's script around the program.
program() { # name
    if [ -x "$build/bin/.libs/$1" ]; then echo "$build/bin/.libs/$1"; else echo "$build/bin/$1"; fi
}
checked() { # ranks, program, arguments...
    checked_ranks=$1
    checked_program=$(program "$2")
    shift 2
    set -- "$checked_program" "$@"
    if [ "$tool" = valgrind ]; then
        set -- valgrind --quiet --log-file="$KEEP/report.%p" --suppressions="$root/tests/checkers/valgrind.supp" \
            --num-callers=30 "$@"
    fi
    status=0
    # shellcheck disable=SC2086  # flags are several words
    timeout -k 5 "$limit" "$launcher" $flags -n "$checked_ranks" "$@" >output 2>&1 </dev/null || status=$?
}
reports() { # the number of findings so far
    cat report* 2>/dev/null | grep -cE '^WARNING: ThreadSanitizer|^==[0-9]+== [A-Z][a-z]'
}
judge() { # what was run
    found=$(reports)
    [ "$status" = 0 ] && [ "$found" = "$before" ] || bad=1
    [ "$status" = 0 ] && [ "$found" = "$before" ]
    result $? "$1: $((found - before)) findings"
    before=$found
}
study() { # name, ranks, arguments of train...
    name=$1
    study_ranks=$2
    shift 2
    checked "$study_ranks" train --data images --quiet --model mlp --batch 8 "$@"
    judge "$name"
}

bad=0
before=0
study "lazy, saved" 2 --steps 6 --sync lazy --checkpoint lazy --checkpoint-every 2 --log log --trace trace --stats
rm lazy lazy.step-*6*
study "lazy, resumed" 2 --steps 6 --sync lazy --resume lazy --checkpoint lazy --checkpoint-every 2
study "lazy, polling" 3 --steps 3 --sync lazy --progress poll --shift 1 --flip 0.5
study "lazy, a hook and accumulated" 2 --steps 3 --sync lazy --wire int8 --accumulate 2
study "explicit, clipped" 2 --steps 3 --sync explicit --clip-grad-norm 1 --finite skip
export ISO_RANKS_PER_NODE=1
study "daso" 2 --steps 8 --sync daso --period 2 --wait 1 --warmup 0 --cooldown 0
study "streaming-diloco" 2 --steps 8 --sync streaming-diloco --period 4 --wait 2
unset ISO_RANKS_PER_NODE
checked 2 own-arrays
judge "the gradient engine on plain arrays"
print_plan
exit $bad
