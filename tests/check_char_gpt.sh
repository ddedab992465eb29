#!/bin/sh
# SPDX-License-Identifier: MIT
# Trains examples/char_gpt.c on a text made here, gives it files that it cannot use, and prints the results as TAP.
# usage: check_char_gpt.sh, in the build tree; uses MPIRUN and MPIRUN_FLAGS
# Not -e: what fails here is a result, not the end.
set -u

root=$(cd "$(dirname "$0")/.." && pwd) || exit 1
# shellcheck source=tests/program_tests.sh
. "$root/tests/program_tests.sh"
need_launcher
gpt=$programs/char-gpt
limit=120
enter_work

# Words in random order. Letters inside a word are certain: about 5 letters share the entropy of one word in eight.
words="amber birch copper dolphin ember falcon granite harbour"
make_text() { # words, seed
    awk -v count="$1" -v seed="$2" -v words="$words" '
        BEGIN { srand(seed); n = split(words, w, " "); for (i = 0; i < count; i++) printf "%s ", w[1 + int(rand() * n)] }'
}
make_text 4000 1 >text

last_loss() { sed -n 's/^step 150: test loss \([0-9.]*\)$/\1/p' stdout; }
is_refusal() { # pattern
    has_failed && [ "$(grep -c '^error' stderr)" = 1 ] && grep -qE "^error: $1" stderr && ! has_crashed stderr
}

# The entropy is ln 8 / 6.9 characters = 0.30 nats; characters drawn by their frequency alone have 2.9.
first=
for ranks in 1 2 4; do
    run $ranks "$gpt" text 150
    loss=$(last_loss)
    first=${first:-$loss}
    [ "$status" = 0 ] && [ ! -s stderr ] && awk -v l="${loss:-9}" 'BEGIN { exit !(l > 0.25 && l < 0.6) }'
    result $? "$ranks ranks learn the words (loss ${loss:-unknown})"
    awk -v a="${loss:-9}" -v b="${first:-0}" 'BEGIN { exit !((a - b) ^ 2 < 0.02 ^ 2) }'
    result $? "$ranks ranks have the loss of one rank with the whole batch"
done

# Some of what follows are words of the text, after so few steps; the first and the last one are cut off.
known=0
count=0
for word in $(sed -n 's/^the text goes on: "[a-z]* \(.*\) [a-z]*"$/\1/p' stdout); do
    count=$((count + 1))
    case " $words " in *" $word "*) known=$((known + 1)) ;; esac
done
[ $known -ge 3 ]
result $? "the text goes on with $known known words of $count"

run 2 "$gpt" none
is_refusal 'none cannot be opened'
result $? "a missing file is refused"
run 2 "$gpt" .
is_refusal '\. is not a regular file: give a file of text'
result $? "a folder is refused"
head -c 1000 text >short
run 2 "$gpt" short
is_refusal 'short has 1000 bytes: give a text of 1300 bytes to 1 GiB'
result $? "a short text is refused"
run 2 "$gpt" text 0
is_refusal '0 steps: give a whole number from 1 to 100000000'
result $? "no steps are refused"
run 2 "$gpt"
is_refusal 'give a file of text'
result $? "no file is refused"

# Rank 0 runs in the folder a, and rank 1 in the folder b.
mkdir a b
make_text 400 1 >a/text
make_text 400 2 >b/text
# shellcheck disable=SC2016  # $@ belongs to the inner shells
run 1 sh -c 'cd a && exec "$@"' sh "$gpt" text : -n 1 sh -c 'cd b && exec "$@"' sh "$gpt" text
is_refusal 'text is not the same on all ranks: rank 1 has other contents than rank 0'
result $? "another file on one rank is refused"

print_plan
