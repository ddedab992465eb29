#!/bin/sh
# SPDX-License-Identifier: MIT
# Gives every reader of foreign input the inputs of its corpus and some thousand changed copies: none may crash or hang.
# "make fuzz" searches longer, with libFuzzer and sanitizers. Prints the results as TAP.
# usage: check_fuzz.sh, in the build tree
set -u

root=$(cd "$(dirname "$0")/.." && pwd) || exit 1
# shellcheck source=tests/program_tests.sh
. "$root/tests/program_tests.sh"
replay=$PWD/tests/fuzz/fuzz_replay
enter_work

for target in idx gzip csv safetensors state options settings list report record; do
    changes=1000
    [ $target != record ] || changes=100 # of 265 KiB each
    corpus=$root/tests/fuzz/corpus/$target
    inputs=$(($(find "$corpus" -type f ! -name '.*' | wc -l) * (changes + 1)))
    ISO_TEST_FUZZ=$target ISO_LOG=error run_alone "$replay" "$corpus" $changes
    [ "$status" = 0 ] && [ $inputs -gt 0 ] && [ "$(sed -n 's/ inputs$//p' stdout)" = $inputs ]
    result $? "$target: the corpus and $changes changed copies of each input are read or refused"
done

# A target that fails must show, or nothing above proves anything.
mkdir none
ISO_TEST_FUZZ=idx run_alone "$replay" none 10
[ "$status" = 1 ]
result $? "an empty corpus is a failure"
ISO_TEST_FUZZ=nothing run_alone "$replay" none 10
[ "$status" = 1 ] && grep -q '^set ISO_TEST_FUZZ to one of: idx ' stderr
result $? "an unknown target is a failure"

print_plan
