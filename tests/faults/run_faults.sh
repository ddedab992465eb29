#!/bin/sh
# SPDX-License-Identifier: MIT
# Makes calls of a short run of train fail, one a run: each run must end with one sentence or as if nothing had
# happened, and can be resumed. Prints the number of runs by what they came to.
# usage: run_faults.sh [KIND...], in the build tree; of each kind every call that has a stack of its own, or with ALL=1
#        every call; MOST runs in all, drawn from these; JOBS runs at a time; KEEP names the folder to work in, new,
#        empty or of an earlier run, where those of runs that went wrong stay
set -u

root=$(cd "$(dirname "$0")/../.." && pwd) || exit 1
build=$PWD
# shellcheck source=tests/program_tests.sh
. "$root/tests/program_tests.sh"
# shellcheck source=tests/idx_files.sh
. "$root/tests/idx_files.sh"
# shellcheck source=tests/faults/faults.sh
. "$root/tests/faults/faults.sh"

# One of the jobs, which reads its cases: "PHASE KIND:N:RANK".
if [ "${1:-}" = --job ]; then
    build=$2
    faults=$PWD
    faults_try "$3" "$4"
    exit
fi

kinds=${*:-alloc mpi poll open read write text rename sync map thread}
KEEP=${KEEP:-$build/faults}
if [ -e "$KEEP" ] && [ ! -e "$KEEP/.run_faults" ] && [ -n "$(ls -A "$KEEP")" ]; then
    echo "run_faults.sh: $KEEP is not of an earlier run, which would be removed: name another folder" >&2
    exit 2
fi
rm -rf "$KEEP"
mkdir -p "$KEEP" && cd "$KEEP" && : >.run_faults || exit 1
faults_prepare "$build" || exit 1
for kind in $kinds; do
    [ -n "${ALL:-}" ] || kind=new-$kind
    for phase in first resumed; do
        for rank in 0 1; do
            seq -f "$phase $kind:%.0f:$rank" "$(faults_count $phase "$kind" $rank)"
        done
    done
done >possible
yes | head -c 1000000 >seed
sort -R --random-source=seed possible | head -n "${MOST:-1000000}" >cases
echo "$(wc -l <cases) runs of $(wc -l <possible)"
xargs -P "${JOBS:-4}" -L 1 sh "$root/tests/faults/run_faults.sh" --job "$build" <cases >outcomes
awk '{ split($2, f, ":"); n[f[1] " " $3]++ } END { for (i in n) print i, n[i] }' outcomes | sort
if grep -E '^[a-z]+ [^ ]+ [A-Z]' outcomes; then
    exit 1
fi
